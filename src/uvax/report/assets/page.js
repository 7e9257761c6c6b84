"use strict";
// Theme: automatic, light or dark, remembered where the browser allows it.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const names = { "": "automatic", light: "light", dark: "dark" }, order = ["", "light", "dark"];
  let theme = "";
  try { theme = localStorage.getItem("uvax-theme") || ""; } catch { /* a page from a file may have no storage */ }
  const apply = () => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    button.textContent = "Colours: " + names[theme];
    document.dispatchEvent(new Event("uvax-theme"));
  };
  button.addEventListener("click", () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    try { localStorage.setItem("uvax-theme", theme); } catch { /* not remembered, then */ }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
})();

// Whoever jumps to a section finds its title below the list of sections, which takes one line or several.
(() => {
  const list = document.querySelector("nav");
  const measure = () => { document.documentElement.style.scrollPaddingTop = list.offsetHeight + 12 + "px"; };
  new ResizeObserver(measure).observe(list);
  measure();
})();

// Charts: drawn when they come near the window, in the colours of the page.
(() => {
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themed = layout => {
    const grid = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line") };
    const scene = layout.scene ? { scene: Object.assign({}, layout.scene) } : {};
    for (const axis of layout.scene ? ["xaxis", "yaxis", "zaxis"] : [])
      scene.scene[axis] = Object.assign({}, layout.scene[axis], { gridcolor: css("--line"), color: css("--ink") });
    return Object.assign({}, layout, scene, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
      font: { color: css("--ink"), family: "system-ui, sans-serif", size: 13 },
      xaxis: Object.assign({}, layout.xaxis, grid), yaxis: Object.assign({}, layout.yaxis, grid),
    });
  };
  const charts = new Map();
  for (const source of document.querySelectorAll('script[type="application/json"][data-chart]')) {
    const chart = JSON.parse(source.textContent);
    charts.set(source.dataset.chart, { ...chart, drawn: false, group: chart.groups.length ? chart.groups[0] : null });
  }
  const shown = chart => chart.group === null ? chart.data
    : chart.data.filter(trace => (trace.uvaxGroup || chart.group) === chart.group);
  const clean = traces => traces.map(({ uvaxGroup, ...trace }) => trace);
  const draw = id => {
    const chart = charts.get(id);
    chart.drawn = true;
    Plotly.react(id, clean(shown(chart)), themed(chart.layout), { responsive: true, displaylogo: false,
      displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] });
  };
  const watcher = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting && !charts.get(entry.target.id).drawn) draw(entry.target.id);
  }, { rootMargin: "800px" });
  for (const id of charts.keys()) watcher.observe(document.getElementById(id));
  for (const select of document.querySelectorAll("select[data-chart]"))
    select.addEventListener("change", () => { charts.get(select.dataset.chart).group = select.value; draw(select.dataset.chart); });
  document.addEventListener("uvax-theme", () => { for (const [id, chart] of charts) if (chart.drawn) draw(id); });
})();

// Files: handed over as blobs, which no browser limits in size.
for (const button of document.querySelectorAll("button.file"))
  button.addEventListener("click", () => {
    const content = JSON.parse(document.querySelector(`[data-content="${button.dataset.file}"]`).textContent);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type: "text/csv" }));
    link.download = button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
