"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function draw(name) {
    const place = document.getElementById(name);
    if (place) Charts.draw(place, figures[name]);
  }

  const drawAll = () => Object.keys(figures).forEach(draw);

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
  });

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

  // --- what is folded ---------------------------------------------------------------------------------------------------
  const unfold = (place) => place.querySelectorAll(":scope > details").forEach((one) => { one.open = true; });
  links.forEach((a, id) => a.addEventListener("click", () => unfold(document.getElementById(id))));
  window.addEventListener("beforeprint", () => document.querySelectorAll("main section").forEach(unfold));

  // --- a click in a chart: the command that shows the rows of its step ------------------------------------------------------
  document.addEventListener("step", ({ detail: step }) => {
    const last = document.querySelector("#rows .part:last-child tbody tr:last-child");
    if (!last || step < 0) return;
    const added = last.dataset.clicked ? last : last.cloneNode(true), [number, what, command] = added.children;
    added.dataset.clicked = "yes";
    number.textContent = step.toLocaleString("en");
    what.textContent = "clicked in a chart";
    command.firstChild.textContent = command.textContent.replace(/--step \d+/, `--step ${step}`);
    last.after(added);
    added.scrollIntoView({ block: "nearest" });
  });

  // --- a run that goes on ---------------------------------------------------------------------------------------------
  const parts = new Map();

  function updateSection(section) {
    const whole = document.getElementById(section.id);
    if (!whole) return;
    const place = whole.querySelector(":scope > details") ?? whole, line = whole.querySelector(".line");
    if (line) line.textContent = section.line;
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

  // --- begin ------------------------------------------------------------------------------------------------------------
  drawAll();
  root.dataset.drawn = "yes";
  (async () => {
    const every = Number(root.dataset.live || 0) * 1000;
    while (every > 0) {
      await refresh();
      await new Promise((resolve) => setTimeout(resolve, every));
    }
  })();
})();
