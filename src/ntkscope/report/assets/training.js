/* A tracked training: one spectrum at a time, at any moment, by slider, by keys, or played; curves show the same moment. */
(() => {
  "use strict";
  const box = document.getElementById("player");
  const tools = document.getElementById("player-tools");
  const holder = document.getElementById("data-tracked_training");
  if (!box || !tools || !holder) return;
  const { counted, make, shown } = ntkscope;
  const { moments, spectra } = JSON.parse(holder.textContent);
  const count = moments.step.length;
  if (!count) return;
  const groups = [...box.querySelectorAll(".of-spectrum")];
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const WHOLE = 8000; // milliseconds from the first to the last moment, at most
  const SLOWEST = 400; // milliseconds per moment, at most

  // -- controls; without a script there are none, and pictures of some moments stand in their place ---------------------------
  const slider = make("input", { type: "range", id: "player-moment", min: 0, max: count - 1, step: 1, value: count - 1 });
  const play = make("button", { type: "button", class: "action play", id: "player-play" });
  const said = make("output", { id: "player-said", for: "player-moment" });
  const choose = make("select", { id: "player-of" },
    ...spectra.map((spectrum, n) => make("option", { value: n }, spectrum.name)));
  tools.append(
    make("p", { class: "player-choice", hidden: spectra.length < 2 }, make("label", { for: "player-of" }, "Spectrum of "), choose),
    make("div", { class: "player-row" }, play, make("label", { for: "player-moment", class: "hidden" }, "Moment"), slider),
    said,
    make("p", { class: "soft small" }, "Arrow keys change the moment, the space bar plays."));
  tools.hidden = false;
  box.classList.add("with-script");

  let at = count - 1;
  let of = 0;
  let timer = null;

  const set = (element, name, value) => element && element.setAttribute(name, value);
  const bars = ({ edges, floor, top, tallest }, counts) =>
    counts.map((n, k) => (n ? `M${edges[k]} ${floor}V${(floor - (floor - top) * Math.sqrt(Math.min(n / tallest, 1))).toFixed(1)}H${edges[k + 1]}V${floor}z` : "")).join("");

  // the chosen spectrum at the chosen moment
  const draw = () => {
    const spectrum = spectra[of];
    const group = groups[of];
    const x = moments.x[at];
    for (const cursor of group.querySelectorAll(".cursor")) {
      set(cursor, "x1", x);
      set(cursor, "x2", x);
      set(cursor, "visibility", "visible");
    }
    const words = [`Moment ${counted(at + 1)} of ${counted(count)}`, `step ${counted(moments.step[at])}`];
    if (moments.loss[at] !== null) words.push(`loss ${shown(moments.loss[at])}`);
    const look = spectrum.looks.length ? spectrum.looks[spectrum.shows[at]] : null;
    if (look) {
      const figure = group.querySelector(".now");
      set(figure.querySelector(".bars-of"), "d", bars(spectrum, look.counts));
      const edge = figure.querySelector(".edge");
      set(edge, "d", look.edge === null ? "" : `M${look.edge} ${spectrum.top}V${spectrum.floor}`);
      set(edge, "data-tip", look.edge === null ? "" : `edge of the noise: ${shown(look.edge_value)}`);
      set(figure.querySelector(".rug"), "d", look.rug);
      const spikes = figure.querySelector(".spikes");
      set(spikes, "d", look.spikes);
      set(spikes, "data-tip", `${look.spike_values.length} outside the noise: ${look.spike_values.slice(0, 8).map((v) => shown(v)).join(", ")}`);
      figure.querySelector(".at-step").textContent = ` at step ${counted(look.step)}`;
      const told = `${spectrum.name} at step ${look.step}: the largest ${spectrum.noun} is ${shown(look.largest)}`;
      const picture = figure.querySelector("svg");
      set(picture, "aria-label", told);
      picture.querySelector("title").textContent = told;
      words.push(`largest ${shown(look.largest)}`);
      if (look.tested) words.push(look.spike_values.length === 1 ? "1 spike" : `${look.spike_values.length} spikes`);
      if (look.label) words.push(look.label);
      if (look.step !== moments.step[at]) words.push(`as measured at step ${counted(look.step)}`);
    }
    slider.value = at;
    set(slider, "aria-valuetext", words.slice(0, 3).join(", "));
    said.textContent = words.join(" · ");
  };

  const name = () => {
    if (still.matches) play.textContent = "Next moment";
    else play.textContent = timer === null ? "▶ Play" : "❚❚ Pause";
    set(play, "aria-pressed", still.matches ? "false" : String(timer !== null));
    set(said, "aria-live", timer === null ? "polite" : "off"); // not a sentence per picture
  };
  const stop = () => {
    clearTimeout(timer);
    timer = null;
    name();
  };
  const go = (to) => {
    at = Math.max(0, Math.min(count - 1, to));
    draw();
  };
  const next = () => {
    if (at >= count - 1) return stop();
    go(at + 1);
    timer = setTimeout(next, Math.min(SLOWEST, WHOLE / count));
  };
  // a reader who asked for less motion gets one moment per press
  const press = () => {
    if (still.matches) return go(at >= count - 1 ? 0 : at + 1);
    if (timer !== null) return stop();
    if (at >= count - 1) go(0);
    timer = setTimeout(next, Math.min(SLOWEST, WHOLE / count));
    name();
  };
  const show = (n) => {
    of = n;
    groups.forEach((group, k) => (group.hidden = k !== n));
    draw();
  };

  play.addEventListener("click", press);
  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  choose.addEventListener("change", () => show(Number(choose.value)));
  still.addEventListener("change", stop);
  document.addEventListener("visibilitychange", () => document.hidden && timer !== null && stop());
  const keys = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target === choose) return;
    if (event.key === " ") {
      if (event.target === play) return; // a button does that itself
      event.preventDefault();
      return press();
    }
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: count - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    stop();
    go(to);
  };
  box.addEventListener("keydown", keys);
  tools.addEventListener("keydown", keys);
  name();
  show(0);
})();
