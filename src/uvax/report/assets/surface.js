"use strict";
// Surfaces over two axes: one at a time, to be turned by dragging or by sliders and read point by point.
(() => {
  const STOPS = ["#00224e", "#2a3f6d", "#575d6d", "#7d7c78", "#a69d75", "#d2c060", "#fee838"]; // cividis
  const SVG = "http://www.w3.org/2000/svg", WIDTH = 460, HEIGHT = 380;
  const make = (name, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
  function mix(t) {
    const place = Math.min(Math.max(t, 0), 1) * (STOPS.length - 1), i = Math.min(Math.floor(place), STOPS.length - 2), f = place - i;
    return "rgb(" + [0, 1, 2].map(k => Math.round(part(STOPS[i], k) * (1 - f) + part(STOPS[i + 1], k) * f)).join(",") + ")";
  }
  const number = v => v === 0 ? "0" : Math.abs(v) >= 0.0995 ? v.toFixed(3) : v.toPrecision(2);
  // Round numbers from zero to the top, four or five of them.
  function ticks(low, high) {
    const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 2.5, 5, 10].find(m => m * power >= rough) * power;
    const found = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high * 1.0001; v += step) found.push(Number(v.toPrecision(6)));
    return found;
  }

  // Which of n places get a label: at most six, the first and the last if that can be.
  function every(n) {
    const least = Math.max(1, Math.ceil((n - 1) / 5));
    for (let step = least; step < 2 * least; step++) if ((n - 1) % step === 0) return step;
    return least;
  }

  function surfaces(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent), { x, y, layers } = data;
    const main = (layers.find(l => l.reference) || layers[0]).scale;
    const state = { layer: layers.findLastIndex(l => l.scale === main), i: 0, j: 0, turn: 38, tilt: 27 };
    const place = figure.querySelector(".surface"), cuts = figure.querySelector(".cuts"), said = figure.querySelector(".said");
    const layer = () => layers[state.layer], value = (l, i, j) => l.values[j][i];
    const reference = () => layers.find(l => l.reference && l.scale === layer().scale && l !== layer());
    const limits = () => {
      const all = layers.filter(l => l.scale === layer().scale).flatMap(l => l.values.flat());
      return [Math.min(0, ...all), Math.max(...all, 1e-9)];
    };

    // Controls: what they say is kept by the browser's own widgets, which a keyboard reaches.
    const inputs = {};
    function control(name, label, node, set) {
      const wrap = document.createElement("label");
      node.id = `${figure.id}-${name}`;
      node.addEventListener(node === select ? "change" : "input", () => { set(node.value); update(); });
      wrap.append(label, node);
      inputs[name] = node;
      return wrap;
    }
    const slider = (low, high) => Object.assign(document.createElement("input"), { type: "range", min: low, max: high, step: 1 });
    const select = document.createElement("select");
    select.append(...layers.map((l, k) => new Option(l.name, k)));
    figure.querySelector(".controls").append(
      control("method", "method", select, v => { state.layer = Number(v); }),
      control("x", data.x_label, slider(0, x.length - 1), v => { state.i = Number(v); }),
      control("y", data.y_label, slider(0, y.length - 1), v => { state.j = Number(v); }),
      control("turn", "turn", slider(0, 359), v => { state.turn = Number(v); }),
      control("tilt", "tilt", slider(5, 90), v => { state.tilt = Number(v); }));

    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "application", tabindex: "0" }, place);
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      if (event.shiftKey) {
        state.turn = (state.turn + 360 + 6 * step[0]) % 360;
        state.tilt = Math.min(Math.max(state.tilt + 4 * step[1], 5), 90);
      } else {
        state.i = Math.min(Math.max(state.i + step[0], 0), x.length - 1);
        state.j = Math.min(Math.max(state.j + step[1], 0), y.length - 1);
      }
      update();
    });
    let drag = null;
    svg.addEventListener("pointerdown", event => {
      drag = { id: event.pointerId, x: event.clientX, y: event.clientY, turn: state.turn, tilt: state.tilt, moved: false };
    });
    svg.addEventListener("pointermove", event => {
      if (!drag || event.pointerId !== drag.id) return;
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
      if (!drag.moved && Math.hypot(dx, dy) < 5) return; // a click, so far
      if (!drag.moved) svg.setPointerCapture(drag.id);
      drag.moved = true;
      state.turn = Math.round(drag.turn - dx / 2 + 720) % 360;
      state.tilt = Math.round(Math.min(Math.max(drag.tilt + dy / 3, 5), 90));
      update();
    });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, event => {
      const node = event.target.closest("[data-i]");
      if (end === "pointerup" && drag && !drag.moved && node) {
        Object.assign(state, { i: Number(node.dataset.i), j: Number(node.dataset.j) });
        update();
      }
      drag = null;
    });

    function draw() {
      const [low, high] = limits(), l = layer(), turn = state.turn * Math.PI / 180, tilt = state.tilt * Math.PI / 180;
      const cos = Math.cos(turn), sin = Math.sin(turn);
      const side = (v, n) => n > 1 ? 2 * v / (n - 1) - 1 : 0, height = v => 1.15 * (v - low) / (high - low);
      // The eye is at (cos, sin) of `turn`: to the right is (-sin, cos), towards it (cos, sin).
      const project = (a, b, h) => {
        const right = -sin * a + cos * b, near = cos * a + sin * b;
        return { x: WIDTH / 2 + 132 * right, y: HEIGHT * 0.56 + 132 * (near * Math.sin(tilt) - (h - 0.35) * Math.cos(tilt)), near };
      };
      const at = (i, j, h) => project(side(i, x.length), side(j, y.length), h ?? height(value(l, i, j)));
      const points = list => list.map(p => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join(" ");
      const last = [x.length - 1, y.length - 1];
      svg.replaceChildren();
      svg.setAttribute("aria-label", `${data.alt}: ${l.name}. Arrow keys move the point, with shift they turn the surface.`);
      make("polygon", { points: points([[0, 0], [last[0], 0], last, [0, last[1]]].map(([i, j]) => at(i, j, 0))), class: "floor" }, svg);
      // Axes along the edges of the floor that are nearest, the height at the corner furthest to the left.
      const edge = (axis, n) => {
        const ends = [0, last[1 - axis]].map(k => axis ? at(k, last[1] / 2, 0) : at(last[0] / 2, k, 0));
        return ends[0].near > ends[1].near ? 0 : n;
      };
      const jEdge = edge(0, last[1]), iEdge = edge(1, last[0]);
      // A label stands outside its edge, seen from the middle line of the floor: two at one corner stay apart.
      const mark = (p, inside, text, by, kind = "tick") => {
        const d = Math.hypot(p.x - inside.x, p.y - inside.y) || 1;
        const place = { x: (p.x + by * (p.x - inside.x) / d).toFixed(1), y: (p.y + by * (p.y - inside.y) / d + 4).toFixed(1) };
        make("text", { ...place, class: kind, "text-anchor": "middle" }, svg, text);
      };
      const alongX = (i, text, by, kind) => mark(at(i, jEdge, 0), at(i, last[1] / 2, 0), text, by, kind);
      const alongY = (j, text, by, kind) => mark(at(iEdge, j, 0), at(last[0] / 2, j, 0), text, by, kind);
      x.forEach((name, i) => { if (i % every(x.length) === 0) alongX(i, name, 16); });
      y.forEach((v, j) => { if (j % every(y.length) === 0) alongY(j, String(v), 16); });
      alongX(last[0] / 2, data.x_label, 40, "axis");
      alongY(last[1] / 2, data.y_label, 40, "axis");
      const corners = [[0, 0], [0, last[1]], [last[0], 0], last].map(([i, j]) => ({ i, j, p: at(i, j, 0) }));
      const post = corners.reduce((best, c) => c.p.x < best.p.x ? c : best);
      if (state.tilt < 80) {
        make("polyline", { points: points([at(post.i, post.j, 0), at(post.i, post.j, 1.15)]), class: "post" }, svg);
        for (const v of ticks(low, high)) {
          const p = at(post.i, post.j, height(v));
          make("line", { x1: p.x, x2: p.x - 5, y1: p.y, y2: p.y, class: "post" }, svg);
          make("text", { x: (p.x - 8).toFixed(1), y: (p.y + 4).toFixed(1), class: "tick", "text-anchor": "end" }, svg, String(v));
        }
      }
      // The painter's way: what is furthest first.
      const faces = [];
      for (let j = 0; j < last[1]; j++) for (let i = 0; i < last[0]; i++) {
        const around = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]], corner = around.map(([a, b]) => at(a, b));
        const mean = around.reduce((sum, [a, b]) => sum + value(l, a, b), 0) / 4;
        faces.push({ i, j, corner, mean, near: corner.reduce((sum, p) => sum + p.near, 0) });
      }
      faces.sort((a, b) => a.near - b.near);
      for (const f of faces)
        make("polygon", { points: points(f.corner), fill: mix((f.mean - low) / (high - low)), class: "face", "data-i": f.i, "data-j": f.j }, svg);
      make("polyline", { points: points(x.map((_, i) => at(i, state.j))), class: "cut" }, svg);
      make("polyline", { points: points(y.map((_, j) => at(state.i, j))), class: "cut" }, svg);
      const top = at(state.i, state.j);
      make("circle", { cx: top.x, cy: top.y, r: 6, class: "point" }, svg);
      legend(low, high);
    }
    const bar = document.createElement("div"), scale = document.createElement("canvas"), ends = [document.createElement("span"), document.createElement("span")];
    bar.className = "legend";
    scale.width = 200; scale.height = 1;
    const ink = scale.getContext("2d");
    for (let k = 0; k < 200; k++) { ink.fillStyle = mix(k / 199); ink.fillRect(k, 0, 1, 1); }
    bar.append(ends[0], scale, ends[1]);
    place.append(bar);
    function legend(low, high) { ends[0].textContent = number(low); ends[1].textContent = number(high); }

    // Through the chosen point, along each axis, beside the closed form.
    function cut(title, names, line, beside, chosen) {
      const [low, high] = limits(), box = make("svg", { viewBox: "0 0 320 170", role: "img", "aria-label": title }, cuts);
      const px = k => 48 + 258 * k / Math.max(names.length - 1, 1), py = v => 134 - 112 * (v - low) / (high - low);
      make("text", { x: 48, y: 14, class: "axis" }, box, title);
      for (const v of ticks(low, high)) {
        make("line", { x1: 48, x2: 306, y1: py(v), y2: py(v), class: "rule" }, box);
        make("text", { x: 43, y: py(v) + 4, class: "tick", "text-anchor": "end" }, box, String(v));
      }
      names.forEach((name, k) => { if (k % every(names.length) === 0) make("text", { x: px(k), y: 150, class: "tick", "text-anchor": "middle" }, box, name); });
      const path = values => values.map((v, k) => `${px(k).toFixed(1)},${py(v).toFixed(1)}`).join(" ");
      if (beside) make("polyline", { points: path(beside), class: "beside" }, box);
      make("polyline", { points: path(line), class: "line" }, box);
      make("circle", { cx: px(chosen), cy: py(line[chosen]), r: 5, class: "point" }, box);
    }
    function update() {
      const l = layer(), other = reference(), { i, j } = state;
      inputs.method.value = state.layer; inputs.x.value = i; inputs.y.value = j; inputs.turn.value = state.turn; inputs.tilt.value = state.tilt;
      inputs.x.setAttribute("aria-valuetext", x[i]);
      inputs.y.setAttribute("aria-valuetext", String(y[j]));
      draw();
      cuts.replaceChildren();
      cut(`along ${data.x_label}, at ${data.y_label} = ${y[j]}`, x, x.map((_, k) => value(l, k, j)), other && x.map((_, k) => value(other, k, j)), i);
      cut(`along ${data.y_label}, at ${x[i]}`, y.map(String), y.map((_, k) => value(l, i, k)), other && y.map((_, k) => value(other, i, k)), j);
      const v = value(l, i, j), w = other && value(other, i, j);
      said.textContent = `At ${x[i]}, ${data.y_label} = ${y[j]}: ${l.name} ${number(v)}` +
        (other ? `, ${other.name} ${number(w)}` + (w > 1e-3 ? ` (ratio ${(v / w).toFixed(2)})` : "") : "") + ".";
    }
    update();
  }
  for (const figure of document.querySelectorAll("figure.surfaces")) surfaces(figure);
})();
