"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = window.matchMedia("(max-width: 40rem)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function merged(below, above) {
    const found = { ...below };
    for (const [key, value] of Object.entries(above)) {
      const nested = value && typeof value === "object" && !Array.isArray(value) && found[key];
      found[key] = nested ? merged(found[key], value) : value;
    }
    return found;
  }

  function themed(layout) {
    const ink = colour("--ink"), soft = colour("--soft"), grid = colour("--grid"), paper = colour("--paper");
    const axis = {
      gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true,
      tickfont: { color: soft, size: 12 }, title: { font: { color: soft, size: 12 }, standoff: 8 },
    };
    return merged(
      {
        autosize: true, height: 340, margin: { l: 56, r: 12, t: 28, b: 44 },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: "keep", hovermode: "x unified",
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
        hoverlabel: { bgcolor: paper, bordercolor: grid, font: { color: ink, size: 12 } },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 12 } },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink, orientation: "v" },
        dragmode: narrow.matches ? false : "zoom",
        xaxis: axis, yaxis: axis,
      },
      layout,
    );
  }

  function draw(name) {
    const place = document.getElementById(name);
    if (!place || !window.Plotly) return null;
    const shown = JSON.parse(JSON.stringify(figures[name])); // plotly keeps and changes what it is given
    return Plotly.react(place, shown.data, themed(shown.layout), { ...config, displayModeBar: !narrow.matches && "hover" });
  }

  const drawAll = () => Promise.all(Object.keys(figures).map(draw));

  // --- light and dark -----------------------------------------------------------------------------------------------
  const kept = {
    get: () => { try { return localStorage.getItem("headrace-theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("headrace-theme", value); } catch { /* a file without storage */ } },
  };
  const theme = kept.get();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    kept.set(root.dataset.theme);
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);

  // --- where the reader is --------------------------------------------------------------------------------------------
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((a) => a.classList.remove("here"));
      links.get(entry.target.id)?.classList.add("here");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  document.querySelectorAll("main section").forEach((section) => watcher.observe(section));

  // --- a run that goes on ---------------------------------------------------------------------------------------------
  const parts = new Map();

  function updateSection(section) {
    const place = document.getElementById(section.id);
    if (!place) return;
    const there = [...place.querySelectorAll(":scope > .part")].map((part) => part.id);
    const same = there.length === section.parts.length && section.parts.every((part, k) => part.id === there[k]);
    if (!same) {
      place.querySelectorAll(":scope > .part").forEach((part) => part.remove());
      for (const part of section.parts) {
        const made = document.createElement("div");
        made.className = "part";
        made.id = part.id;
        place.append(made);
        parts.delete(part.id);
      }
    }
    for (const part of section.parts) {
      if (parts.get(part.id) === part.html) continue;
      document.getElementById(part.id).innerHTML = part.html;
      parts.set(part.id, part.html);
      for (const name of Object.keys(section.figures)) {
        if (part.html.includes(`id="${name}"`)) delete figures[name]; // its place is new: draw it again
      }
    }
    for (const [name, figure] of Object.entries(section.figures)) {
      if (JSON.stringify(figures[name]) === JSON.stringify(figure)) continue;
      figures[name] = figure;
      draw(name);
    }
  }

  async function refresh() {
    const said = document.getElementById("live");
    try {
      const answer = await fetch("state", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const state = await answer.json();
      state.sections.forEach(updateSection);
      document.getElementById("written").textContent = `Written ${state.written}`;
      said.textContent = "· live";
      said.className = "well";
    } catch {
      said.textContent = "· the server does not answer; these are its last figures";
      said.className = "lost";
    }
  }

  // --- the library of the charts, compressed ---------------------------------------------------------------------------
  async function loadLibrary() {
    const bytes = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(
      new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))
    ).text();
    document.head.append(script);
  }

  loadLibrary().then(drawAll).then(async () => {
    root.dataset.drawn = "yes";
    const every = Number(root.dataset.live || 0) * 1000;
    while (every > 0) {
      await refresh();
      await new Promise((resolve) => setTimeout(resolve, every));
    }
  });
})();
