"use strict";
/* Charts as SVG, drawn at their current width and redrawn when it changes.

   A figure is {series, x, y, height, legend, rule}. A series has a name, a mark (line, step, area, bar, dots or peaks),
   x and y (null: a gap) and, optionally, colour (a number of the palette, -1: grey), dash, width, group, text (of dots,
   or the values of peaks), legend, and hidden until it is clicked in the legend.
   An axis has title, format (share, count, number), log, zero and range. Colours are the page's, so switching between
   light and dark needs no redrawing. Names are inserted as text and cannot become markup. */
const Charts = (() => {
  const FONT = 12, DASHES = ["", "8 3 2 3", "10 4"], DOTS = "2 3", MOST_ROWS = 14, PEAK_VALUES = 16;
  const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
  const states = new WeakMap();
  const ruler = document.createElement("canvas").getContext("2d");

  const make = (name, attributes = {}, text = null) => {
    const svg = ["svg", "g", "path", "line", "rect", "circle", "text", "clipPath", "title"].includes(name);
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== null) element.textContent = text;
    return element;
  };
  const colour = (series) => (series.colour < 0 ? "var(--grey)" : `var(--c${(series.colour ?? 0) % 10})`);
  const groupOf = (series) => series.group ?? series.name;
  const there = (value) => value !== null && value !== undefined;

  // --- numbers ----------------------------------------------------------------------------------------------------
  function digits(value, most = 4) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    const unit = size >= 1e4 && UNITS.find(([unit]) => Number(size.toPrecision(3)) >= unit);
    if (unit) return `${digits(value / unit[0], Math.min(most, 3))} ${unit[1]}`;
    if (size < 1e-4) return value.toExponential(Math.min(most - 1, 2)).replace(/\.?0+e/, "e").replace("e+", "e");
    return Number(value.toPrecision(most)).toLocaleString("en", { maximumFractionDigits: 8 });
  }
  function formatted(value, format, most) {
    if (typeof value === "string") return value;
    if (format === "share") return `${digits(100 * value, most)}%`;
    return format === "count" ? Math.round(value).toLocaleString("en") : digits(value, most);
  }

  // --- scales -----------------------------------------------------------------------------------------------------
  function linearTicks(low, high, count, least) {
    const rough = Math.max((high - low) / Math.max(count, 1), least), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((candidate) => candidate >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  }
  function logTicks(low, high, count) {
    const decades = Math.log10(high / low);
    const factors = decades > count ? [1] : decades < 1.5 ? [1, 2, 3, 5] : decades < 3 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / Math.max(count, 1)));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      if (power % every) continue;
      for (const factor of factors) ticks.push(Number((factor * 10 ** power).toPrecision(3)));
    }
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  }
  function scaleOf(axis, values, pixels, count) {
    const numbers = values.filter((value) => there(value) && (!axis.log || value > 0));
    let low = numbers.reduce((a, b) => Math.min(a, b), Infinity), high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!numbers.length) [low, high] = axis.log ? [1, 10] : [0, 1];
    if (axis.range) [low, high] = axis.range;
    else if (axis.zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
    if (low === high && axis.log) [low, high] = [low / 2, high * 2];
    else if (low === high && axis.format === "count") [low, high] = [Math.max(low - 1, Math.min(low, 0)), high + 1];
    else if (low === high) [low, high] = low === 0 ? [0, 1] : [low - 0.1 * Math.abs(low), high + 0.1 * Math.abs(high)];
    if (!axis.range && !axis.tight) {
      if (axis.log) [low, high] = [low / 1.15, high * 1.15];
      else [low, high] = [low === 0 ? 0 : low - 0.04 * (high - low), high + 0.06 * (high - low)];
    }
    const map = axis.log ? Math.log10 : (value) => value;
    const [from, to] = pixels, [begin, end] = [map(low), map(high)];
    const at = (value) => from + ((map(value) - begin) / (end - begin)) * (to - from);
    at.pixels = pixels;
    at.back = (pixel) => {
      const value = begin + ((pixel - from) / (to - from)) * (end - begin);
      return axis.log ? 10 ** value : value;
    };
    at.ticks = axis.log ? logTicks(low, high, count) : linearTicks(low, high, count, axis.format === "count" ? 1 : 0);
    return at;
  }

  // --- marks ------------------------------------------------------------------------------------------------------
  function linePath(x, y, isStep) {
    let path = "", before = null, singles = [];
    for (let k = 0; k < x.length; k++) {
      if (!there(x[k]) || !there(y[k]) || !isFinite(y[k])) { before = null; continue; }
      const point = `${x[k].toFixed(1)} ${y[k].toFixed(1)}`;
      path += before === null ? `M${point}` : isStep ? `H${x[k].toFixed(1)}V${y[k].toFixed(1)}` : `L${point}`;
      if (before === null && !(there(y[k + 1]) && isFinite(y[k + 1]))) singles.push([x[k], y[k]]);
      before = k;
    }
    return { path, singles };
  }
  function stack(series) {
    const sums = new Map();
    return series.map((one) => {
      const base = one.x.map((x) => sums.get(x) ?? 0);
      const top = one.y.map((y, k) => base[k] + (y ?? 0));
      one.x.forEach((x, k) => sums.set(x, top[k]));
      return { base, top };
    });
  }

  function drawSeries(layer, figure, visible, sx, sy, categories) {
    const bars = visible.filter((one) => one.mark === "bar"), areas = visible.filter((one) => one.mark === "area");
    const stacked = stack(areas);
    const place = (value) => (categories ? categories.indexOf(value) : value);
    for (const one of visible) {
      const style = colour(one), xs = one.x.map((value) => sx(place(value)));
      const ys = one.y.map((value) => (there(value) && !(figure.y.log && value <= 0) ? sy(value) : null));
      if (one.mark === "bar") {
        const spacing = categories ? sx(1) - sx(0) : xs.length > 1 ? Math.abs(xs[1] - xs[0]) : 60;
        const width = Math.min((0.8 * spacing) / bars.length, 90), first = -(width * bars.length) / 2 + width * bars.indexOf(one);
        ys.forEach((y, k) => {
          if (y === null) return;
          const [top, bottom] = [Math.min(y, sy(0)), Math.max(y, sy(0))];
          layer.append(make("rect", { class: "mark", x: xs[k] + first, y: top, width: Math.max(width - 1, 1), height: bottom - top, fill: style }));
          if (one.text) layer.append(make("text", { class: "value", x: xs[k] + first + width / 2, y: top - 5, "text-anchor": "middle" }, one.text[k]));
        });
      } else if (one.mark === "area") {
        const { base, top } = stacked[areas.indexOf(one)];
        const upper = top.map((value, k) => `${xs[k].toFixed(1)} ${sy(value).toFixed(1)}`);
        const lower = base.map((value, k) => `${xs[k].toFixed(1)} ${sy(value).toFixed(1)}`).reverse();
        if (upper.length > 1) layer.append(make("path", { class: "mark", d: `M${[...upper, ...lower].join("L")}Z`, fill: style, "fill-opacity": 0.55, stroke: style }));
      } else if (one.mark === "dots" || one.mark === "peaks") {
        let end = -Infinity;
        ys.forEach((y, k) => {
          if (y === null) return;
          if (one.mark === "dots") { layer.append(make("circle", { class: "mark", cx: xs[k], cy: y, r: 4, fill: style })); return; }
          layer.append(make("path", { class: "mark", d: `M${xs[k] - 5} ${y + 7}h10l-5 -8Z`, fill: style }));
          const text = formatted(one.text[k], figure.y.format, 3), half = ruler.measureText(text).width / 2;
          const x = Math.min(Math.max(xs[k], sx.pixels[0] + half), sx.pixels[1] - half);
          if (x - half < end + 4) return;  // its value is shown when the pointer is on it
          layer.parentNode.append(make("text", { class: "value", x, y: sy.pixels[1] - 6, "text-anchor": "middle" }, text));
          end = x + half;
        });
      } else {
        const { path, singles } = linePath(xs, ys, one.mark === "step");
        const dash = one.dash === "dots" ? DOTS : DASHES[one.dash ?? 0];
        layer.append(make("path", { class: "mark", d: path, fill: "none", stroke: style, "stroke-width": one.width ?? 2, "stroke-dasharray": dash }));
        singles.forEach(([x, y]) => layer.append(make("circle", { class: "mark", cx: x, cy: y, r: 2.5, fill: style })));
      }
    }
  }

  // --- the whole chart ----------------------------------------------------------------------------------------------
  function render(place) {
    const state = states.get(place), { figure } = state;
    const width = Math.floor(place.clientWidth), height = figure.height ?? 320;
    if (!width) return;
    ruler.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    const visible = figure.series.filter((one) => !state.hidden.has(groupOf(one)));
    const categories = figure.series.some((one) => typeof one.x[0] === "string") ? [...new Set(figure.series.flatMap((one) => one.x))] : null;
    const zoom = state.zoom, inside = (x) => !zoom || (x >= zoom[0] && x <= zoom[1]);
    const xs = categories ? [-0.5, categories.length - 0.5] : zoom ?? visible.flatMap((one) => one.x).concat(figure.x.range ?? []);
    const stacked = stack(visible.filter((one) => one.mark === "area")).flatMap(({ top }) => top);
    const ys = visible.flatMap((one) => one.y.filter((_, k) => categories || inside(one.x[k])));
    const values = visible.some((one) => one.mark === "peaks") ? PEAK_VALUES : 0;  // above the chart: no line crosses them
    const bottom = height - 44, top = (figure.y.title ? 24 : 10) + values;
    const yValues = [...ys, ...stacked, ...(there(figure.rule) ? [figure.rule] : [])];
    const sy = scaleOf(figure.y, yValues, [bottom, top], Math.max(3, Math.floor((bottom - top) / 48)));
    const labels = sy.ticks.map((tick) => formatted(tick, figure.y.format, 3));
    const left = Math.ceil(Math.max(20, ...labels.map((label) => ruler.measureText(label).width))) + 10, right = width - 14;
    const sx = scaleOf({ ...figure.x, tight: true, range: categories || zoom ? xs : figure.x.range }, xs, [left, right], Math.max(3, Math.floor((right - left) / 72)));
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const clip = `${place.id}-clip`, clipPath = make("clipPath", { id: clip });
    clipPath.append(make("rect", { x: left - 3, y: top - 3, width: right - left + 6, height: bottom - top + 6 }));
    svg.append(clipPath);
    sy.ticks.forEach((tick, k) => {
      svg.append(make("line", { class: "grid", x1: left, x2: right, y1: sy(tick), y2: sy(tick) }));
      svg.append(make("text", { class: "tick", x: left - 7, y: sy(tick) + 4, "text-anchor": "end" }, labels[k]));
    });
    const names = categories ? categories.map((name, k) => [k, name]) : sx.ticks.map((tick) => [tick, formatted(tick, figure.x.format, 4)]);
    let end = -Infinity;
    for (const [value, name] of names) {
      const half = ruler.measureText(name).width / 2, x = Math.min(Math.max(sx(value), half), width - half);
      if (!categories) svg.append(make("line", { class: "grid", x1: sx(value), x2: sx(value), y1: top, y2: bottom }));
      if (x - half < end + 8) continue;
      svg.append(make("text", { class: "tick", x, y: bottom + 19, "text-anchor": "middle" }, name));
      end = x + half;
    }
    svg.append(make("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    svg.append(make("text", { class: "title", x: 0, y: 12 }, figure.y.title));
    svg.append(make("text", { class: "title", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, figure.x.title));
    const layer = make("g", { "clip-path": `url(#${clip})` });
    if (there(figure.rule)) layer.append(make("line", { class: "rule", x1: left, x2: right, y1: sy(figure.rule), y2: sy(figure.rule) }));
    svg.append(layer);
    drawSeries(layer, figure, visible, sx, sy, categories);
    const cursor = make("g", { class: "cursor" });
    svg.append(cursor);
    state.svg.replaceWith(svg);
    Object.assign(state, { svg, cursor, sx, sy, visible, categories, left, right, top, bottom, width });
    drawLegend(place, state);
  }

  function drawLegend(place, state) {
    const entries = state.figure.series.filter((one) => one.legend !== false && one.mark !== "peaks");
    const shows = state.figure.legend ?? entries.length > 1;
    const buttons = (shows ? entries : []).map((one) => {
      const hidden = state.hidden.has(groupOf(one));
      const button = make("button", { type: "button", "aria-pressed": String(!hidden), title: "Click to hide or show; double-click to show only this one" });
      const sample = make("svg", { width: 22, height: 10, "aria-hidden": "true" });
      const filled = one.mark === "bar" || one.mark === "area" || one.mark === "dots";
      sample.append(filled ? make("rect", { x: 6, width: 10, height: 10, rx: one.mark === "dots" ? 5 : 2, fill: colour(one) })
        : make("line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colour(one), "stroke-width": 2.5, "stroke-dasharray": one.dash === "dots" ? DOTS : DASHES[one.dash ?? 0] }));
      button.append(sample, make("span", {}, one.name));
      button.addEventListener("click", () => { state.hidden[hidden ? "delete" : "add"](groupOf(one)); render(place); });
      button.addEventListener("dblclick", () => {
        const others = entries.map(groupOf).filter((group) => group !== groupOf(one));
        state.hidden = new Set(others.every((group) => state.hidden.has(group)) ? [] : others);
        render(place);
      });
      return button;
    });
    if (state.zoom) {
      const reset = make("button", { type: "button", class: "reset" }, "show all steps");
      reset.addEventListener("click", () => { state.zoom = null; render(place); });
      buttons.push(reset);
    }
    const focused = [...state.legend.children].indexOf(document.activeElement);
    state.legend.replaceChildren(...buttons);
    if (focused >= 0) state.legend.children[focused]?.focus();
  }

  // --- what is under the pointer --------------------------------------------------------------------------------------
  function stops(state) {
    const values = state.categories ? state.categories.map((_, k) => k) : [...new Set(state.visible.flatMap((one) => one.x))].sort((a, b) => a - b);
    return values.map((value) => ({ value, x: state.sx(value) })).filter(({ x }) => x >= state.left - 1 && x <= state.right + 1);
  }
  function showAt(place, x, y) {
    const state = states.get(place), all = stops(state);
    if (!all.length) return;
    state.stop = all.reduce((best, one, k) => (Math.abs(one.x - x) < Math.abs(all[best].x - x) ? k : best), 0);
    const { value: stop, x: at } = all[state.stop], name = state.categories ? state.categories[stop] : stop;
    const rows = [];
    for (const one of state.visible) {
      one.x.forEach((own, k) => {
        if (own === name && there(one.y[k])) rows.push({ one, value: one.y[k], text: one.text?.[k] });
      });
    }
    const { cursor, figure, tip } = state;
    cursor.replaceChildren(make("line", { x1: at, x2: at, y1: state.top, y2: state.bottom }));
    tip.replaceChildren(make("b", {}, `${state.categories ? "" : `${figure.x.title} `}${formatted(name, figure.x.format, 6)}`));
    for (const { one, value: drawn, text } of rows.slice(0, MOST_ROWS)) {
      const row = make("div"), swatch = make("i");
      swatch.style.background = colour(one);
      row.append(swatch, make("span", {}, one.name));
      const value = formatted(one.mark === "peaks" ? text : drawn, figure.y.format, 4);
      row.append(make("em", {}, one.mark === "dots" && text ? `${value}, ${text}` : value));
      tip.append(row);
      const py = state.sy(drawn);
      if (["line", "step"].includes(one.mark) && isFinite(py)) cursor.append(make("circle", { cx: at, cy: py, r: 3.5, fill: colour(one) }));
    }
    if (rows.length > MOST_ROWS) tip.append(make("div", {}, `and ${rows.length - MOST_ROWS} more`));
    tip.hidden = false;
    const room = at + tip.offsetWidth + 24 < state.width;
    tip.style.left = `${room ? at + 12 : Math.max(0, at - tip.offsetWidth - 12)}px`;
    tip.style.top = `${Math.max(0, Math.min(y, state.bottom - tip.offsetHeight))}px`;
  }
  function hide(place) {
    const state = states.get(place);
    state.cursor?.replaceChildren();
    state.tip.hidden = true;
  }

  function listen(place, body) {
    const state = states.get(place);
    const at = (event) => { const box = body.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    body.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      showAt(place, x, y);
      if (state.from !== null && Math.abs(x - state.from) > 6) {
        const [a, b] = [state.from, x].map((one) => Math.min(Math.max(one, state.left), state.right)).sort((p, q) => p - q);
        state.cursor.append(make("rect", { class: "zoom", x: a, y: state.top, width: b - a, height: state.bottom - state.top }));
      }
    });
    body.addEventListener("pointerdown", (event) => {
      const [x, y] = at(event);
      showAt(place, x, y);
      state.from = event.pointerType === "mouse" && !state.categories && event.button === 0 ? x : null;
      if (state.from !== null) event.preventDefault();
    });
    window.addEventListener("pointerup", (event) => {
      if (state.from === null) return;
      const ends = [state.from, at(event)[0]].map((one) => state.sx.back(Math.min(Math.max(one, state.left), state.right)));
      const far = Math.abs(at(event)[0] - state.from) > 12;
      state.from = null;
      if (far) { state.zoom = ends.sort((p, q) => p - q); render(place); }
      else if (state.figure.x.title === "step") body.dispatchEvent(new CustomEvent("step", { bubbles: true, detail: Math.round(ends[0]) }));
    });
    body.addEventListener("pointerleave", () => hide(place));
    body.addEventListener("dblclick", () => { state.zoom = null; render(place); });
    body.addEventListener("blur", () => hide(place));
    body.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], all = step ? stops(state) : [];
      if (!all.length) return;
      const next = Math.min(Math.max((state.stop ?? (step > 0 ? -1 : all.length)) + step, 0), all.length - 1);
      showAt(place, all[next].x, state.top);
      event.preventDefault();
    });
  }

  const watcher = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const state = states.get(target);
      if (state && Math.floor(target.clientWidth) !== state.width) { hide(target); render(target); }
    }
  });

  /** Draws a figure into an element, or another figure into one that has one; what is hidden or zoomed stays so. */
  function draw(place, figure) {
    const old = states.get(place);
    if (old && place.contains(old.legend)) { old.figure = figure; render(place); return; }
    const legend = make("div", { class: "legend" }), body = make("div", { class: "body", tabindex: 0 }), svg = make("svg");
    const tip = make("div", { class: "tip" });
    tip.hidden = true;
    body.append(svg, tip);
    place.replaceChildren(legend, body);
    const hidden = old?.hidden ?? new Set(figure.series.filter((one) => one.hidden).map(groupOf));
    states.set(place, { figure, legend, svg, tip, hidden, zoom: null, from: null, stop: null, width: 0 });
    listen(place, body);
    render(place);
    watcher.observe(place);
  }
  return { draw };
})();
