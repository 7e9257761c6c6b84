"use strict";
// The grid explorer: two methods, one board, one task.
(() => {
  const source = document.getElementById("explorer-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const COLOURS = ["red", "green", "blue", "purple", "yellow", "grey"];
  const PAINT = ["#e03131", "#2f9e44", "#1c7ed6", "#9c36b5", "#f2c200", "#868e96"];
  const SHORT = ["Re", "Gn", "Bl", "Pu", "Ye", "Gy"];
  const FACING = ["east", "south", "west", "north"], ACTIONS = ["turn left", "turn right", "go forward", "open"];
  const STOPS = ["#00224e", "#2a3f6d", "#575d6d", "#7d7c78", "#a69d75", "#d2c060", "#fee838"]; // cividis
  const KEPT = 2, UNIT = 48, SVG = "http://www.w3.org/2000/svg";
  const $ = id => document.getElementById(id);
  const make = (name, attributes = {}, parent = null) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  };
  const sizes = Object.keys(data), state = { size: sizes[0], board: 0, task: 0, quantity: "uncertainty", same: false };
  const methods = () => Object.keys(data[state.size].methods);
  const board = () => data[state.size].boards[state.board];
  const wallOf = task => board().doors.find(door => door.colour === task);
  const label = name => data[state.size].methods[name].label;
  const at = (name, quantity, task, x, y, d) => data[state.size].methods[name][quantity][state.board][task][y - 1][x - 1][d];
  const number = value => value === null ? "none" : Math.abs(value) >= 0.01 || value === 0 ? value.toFixed(3) : value.toExponential(1);

  function pickMethods() {
    const known = methods(), prefer = (list, not) => list.find(m => known.includes(m) && m !== not) || known.find(m => m !== not) || known[0];
    if (!known.includes(state.left)) state.left = prefer(["uvu"]);
    if (!known.includes(state.right)) state.right = prefer(["bdqnp35", "bdqnp15", "bdqnp3"], state.left);
  }
  function home() {
    const start = board().start;
    Object.assign(state, { x: start.x, y: start.y, d: start.direction });
    if (!wallOf(state.task)) state.task = board().doors[1].colour; // south: a task that the data know
  }
  function control(text, options, get, set) {
    const wrap = document.createElement("label"), select = document.createElement("select");
    wrap.append(text, select);
    select.id = "explorer-" + text.toLowerCase().replaceAll(" ", "-");
    select.addEventListener("change", () => { set(select.value); update(); });
    wrap.refresh = () => {
      select.replaceChildren(...options().map(([value, name]) => new Option(name, value)));
      select.value = get();
      wrap.hidden = options().length < 2;
    };
    return wrap;
  }
  const methodOptions = () => methods().map(m => [m, label(m)]);
  const controls = [
    control("Size", () => sizes.map(s => [s, s]), () => state.size, v => { state.size = v; state.board = 0; pickMethods(); home(); }),
    control("Board", () => data[state.size].boards.map((_, i) => [String(i), String(i + 1)]), () => String(state.board),
      v => { state.board = Number(v); home(); }),
    control("Task", () => COLOURS.map((c, i) => [String(i), c + (wallOf(i) ? ", " + wallOf(i).wall : ", impossible")]),
      () => String(state.task), v => { state.task = Number(v); }),
    control("Show", () => [["uncertainty", "uncertainty"], ["value", "value"]], () => state.quantity, v => { state.quantity = v; }),
    control("Left", methodOptions, () => state.left, v => { state.left = v; }),
    control("Right", methodOptions, () => state.right, v => { state.right = v; }),
  ];
  const same = document.createElement("label"), box = document.createElement("input");
  same.className = "check";
  box.type = "checkbox";
  box.id = "explorer-same";
  box.addEventListener("change", () => { state.same = box.checked; update(); });
  same.append(box, "one colour scale for both");
  $("explorer-controls").append(...controls, same);

  function mix(t) {
    const place = Math.min(Math.max(t, 0), 1) * (STOPS.length - 1), i = Math.min(Math.floor(place), STOPS.length - 2), f = place - i;
    const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
    return "rgb(" + [0, 1, 2].map(k => Math.round(part(STOPS[i], k) * (1 - f) + part(STOPS[i + 1], k) * f)).join(",") + ")";
  }
  // Over all tasks of the board, so that choosing another task does not change what a colour means.
  function range(name) {
    const all = data[state.size].methods[name][state.quantity][state.board].flat(3).filter(v => v !== null);
    return [Math.min(...all), Math.max(...all)];
  }
  function scale([low, high]) {
    const root = state.quantity === "uncertainty" && low >= 0; // variances: by their square root
    const f = root ? Math.sqrt : v => v;
    return v => high > low && v !== null ? (f(v) - f(low)) / (f(high) - f(low)) : 0;
  }
  function grid(side, name, limits) {
    const { width, height, doors } = board(), shade = scale(limits), target = $("explorer-grid-" + side);
    const focused = target.contains(document.activeElement);
    const svg = make("svg", { viewBox: `0 0 ${width * UNIT} ${height * UNIT}`, role: "application", tabindex: "0",
      "aria-label": `${label(name)}: ${state.quantity} over the board. Arrow keys move, space turns.` });
    make("rect", { width: width * UNIT, height: height * UNIT, fill: "#454b54" }, svg);
    const corner = [[[1, 0], [1, 1]], [[1, 1], [0, 1]], [[0, 1], [0, 0]], [[0, 0], [1, 0]]];
    for (let y = 1; y < height - 1; y++) for (let x = 1; x < width - 1; x++) {
      const cell = make("g", { class: "cell", "data-x": x, "data-y": y }, svg);
      for (let d = 0; d < 4; d++) {
        const value = at(name, state.quantity, state.task, x, y, d);
        const points = [...corner[d], [0.5, 0.5]].map(([a, b]) => `${(x + a) * UNIT},${(y + b) * UNIT}`).join(" ");
        const triangle = make("polygon", { points, fill: mix(shade(value)), stroke: "#0004", "stroke-width": 0.6, "data-d": d }, cell);
        make("title", {}, triangle).textContent = `(${x}, ${y}) facing ${FACING[d]}: ${number(value)}`;
        triangle.addEventListener("click", () => { Object.assign(state, { x, y, d }); update(); });
      }
    }
    for (const door of doors) {
      const aim = door.colour === state.task;
      make("rect", { x: door.x * UNIT + 4, y: door.y * UNIT + 4, width: UNIT - 8, height: UNIT - 8, rx: 5, fill: PAINT[door.colour],
        stroke: aim ? "#fff" : "#0008", "stroke-width": aim ? 4 : 1, "data-door": COLOURS[door.colour] }, svg);
      make("text", { x: (door.x + .5) * UNIT, y: (door.y + .5) * UNIT + 5, "text-anchor": "middle",
        fill: door.colour === 4 ? "#222" : "#fff" }, svg).textContent = (aim ? "★" : "") + SHORT[door.colour];
    }
    const px = (state.x + .5) * UNIT, py = (state.y + .5) * UNIT;
    make("rect", { x: state.x * UNIT + 1.5, y: state.y * UNIT + 1.5, width: UNIT - 3, height: UNIT - 3, fill: "none", stroke: "#fff", "stroke-width": 3 }, svg);
    make("path", { d: "M 14 0 L -9 -9 L -4 0 L -9 9 Z", fill: "#e03131", stroke: "#fff", "stroke-width": 1.5,
      transform: `translate(${px},${py}) rotate(${90 * state.d})` }, svg);
    svg.addEventListener("keydown", move);
    const legend = document.createElement("div"), bar = document.createElement("canvas");
    legend.className = "legend";
    bar.width = 200; bar.height = 1;
    const ink = bar.getContext("2d");
    for (let i = 0; i < 200; i++) { ink.fillStyle = mix(i / 199); ink.fillRect(i, 0, 1, 1); }
    legend.append(number(limits[0]), bar, number(limits[1]));
    target.replaceChildren(svg, legend);
    if (focused) svg.focus();
    $("explorer-name-" + side).textContent = `${label(name)}: ${state.quantity}, task ${COLOURS[state.task]}` + (wallOf(state.task) ? "" : " (impossible)");
  }
  function move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step && event.key !== " ") return;
    event.preventDefault();
    if (step) {
      state.x = Math.min(Math.max(state.x + step[0], 1), board().width - 2);
      state.y = Math.min(Math.max(state.y + step[1], 1), board().height - 2);
    } else state.d = (state.d + 1) % 4;
    update();
  }
  function kept(name) {
    const order = COLOURS.map((_, i) => i).sort((a, b) => at(name, "uncertainty", a, state.x, state.y, state.d) - at(name, "uncertainty", b, state.x, state.y, state.d));
    const silent = at(name, "uncertainty", order[0], state.x, state.y, state.d) === at(name, "uncertainty", order[5], state.x, state.y, state.d);
    return silent ? null : new Set(order.slice(0, KEPT));
  }
  function tasks() {
    const sides = [state.left, state.right], chosen = sides.map(kept);
    const head = document.createElement("thead"), body = document.createElement("tbody");
    const row = (cells, tag, parent) => {
      const line = parent.appendChild(document.createElement("tr"));
      for (const cell of cells) { const node = line.appendChild(document.createElement(tag)); node.append(cell); if (tag === "th") node.scope = "col"; if (line.children.length < 3) node.className = "left"; }
    };
    row(["task", "door", ...sides.flatMap(m => [`${label(m)} value`, "uncertainty", ""])], "th", head);
    COLOURS.forEach((colour, i) => {
      const button = document.createElement("button"), swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = PAINT[i];
      button.type = "button";
      button.dataset.task = i;
      button.setAttribute("aria-pressed", String(i === state.task));
      button.append(swatch, colour);
      button.addEventListener("click", () => { state.task = i; update(); document.querySelector(`#explorer-tasks [data-task="${i}"]`).focus(); });
      const numbers = sides.flatMap((m, k) => [number(at(m, "value", i, state.x, state.y, state.d)),
        number(at(m, "uncertainty", i, state.x, state.y, state.d)), chosen[k] === null ? "random" : chosen[k].has(i) ? "kept" : "rejected"]);
      row([button, wallOf(i) ? wallOf(i).wall : "none: impossible", ...numbers], "td", body);
    });
    const caption = document.createElement("caption");
    caption.textContent = `The six tasks at (${state.x}, ${state.y}) facing ${FACING[state.d]}`;
    $("explorer-tasks").replaceChildren(caption, head, body);
  }
  function update() {
    for (const item of controls) item.refresh();
    const ranges = [range(state.left), range(state.right)];
    const both = [Math.min(ranges[0][0], ranges[1][0]), Math.max(ranges[0][1], ranges[1][1])];
    grid(0, state.left, state.same ? both : ranges[0]);
    grid(1, state.right, state.same ? both : ranges[1]);
    $("explorer-said").textContent = `At (${state.x}, ${state.y}) facing ${FACING[state.d]}, task ${COLOURS[state.task]}: ` +
      [state.left, state.right].map(m => `${label(m)} has value ${number(at(m, "value", state.task, state.x, state.y, state.d))}, ` +
        `uncertainty ${number(at(m, "uncertainty", state.task, state.x, state.y, state.d))}, and would ${ACTIONS[at(m, "action", state.task, state.x, state.y, state.d)]}`).join("; ") + ".";
    tasks();
  }
  pickMethods();
  home();
  update();
})();
