// Draws the figures, keeps them in step with the controls of their section, and redraws them when the mode changes.
(() => {
  "use strict";
  const { themes, figures } = JSON.parse(document.getElementById("figures").textContent);
  const mode = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  // A figure with a choice of the x axis has one specification for each.
  const specification = (chart) => {
    const axis = chart.closest("figure").querySelector("select[name=figure]");
    return figures[axis ? axis.value : chart.id];
  };

  const chosen = (chart) => {
    const task = chart.closest(".task");
    const choices = {};
    const boxes = [...task.querySelectorAll("input[name=shown]")];
    if (boxes.length) choices.shown = boxes.filter((box) => box.checked).map((box) => box.value);
    const level = task.querySelector("select[name=level]");
    if (level) choices.level = Number(level.value);
    const run = chart.closest("figure").querySelector("select[name=run]");
    if (run) choices.run = run.value;
    return choices;
  };

  const draw = async (chart) => {
    const spec = structuredClone(specification(chart));
    const choices = chosen(chart);
    for (const parameter of spec.params) {
      if (parameter.name in choices) parameter.value = choices[parameter.name];
    }
    views.get(chart)?.finalize();
    const drawn = await vegaEmbed(chart, spec, {
      config: themes[mode.matches ? "dark" : "light"],
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: chart.id,
      tooltip: { theme: mode.matches ? "dark" : "light" },
    });
    views.set(chart, drawn);
  };

  const drawAll = async () => {
    document.documentElement.removeAttribute("data-drawn");
    let drawn = 0;
    for (const chart of document.querySelectorAll(".chart")) {
      try {
        await draw(chart);
        drawn += 1;
      } catch (error) {
        chart.textContent = `This figure could not be drawn: ${error.message}`;
        console.error(chart.id, error);
      }
    }
    document.documentElement.dataset.drawn = drawn;
  };

  const update = async (task) => {
    const level = task.querySelector("select[name=level]");
    for (const text of level ? task.querySelectorAll(".level") : []) text.textContent = level.selectedOptions[0].text;
    for (const chart of task.querySelectorAll(".chart")) {
      const view = views.get(chart)?.view;
      if (!view) continue;
      const known = specification(chart).params.map((parameter) => parameter.name);
      for (const [name, value] of Object.entries(chosen(chart))) {
        if (known.includes(name)) view.signal(name, value);
      }
      await view.runAsync();
    }
  };

  for (const task of document.querySelectorAll(".task")) {
    task.addEventListener("change", (event) => {
      if (event.target.name === "figure") draw(event.target.closest("figure").querySelector(".chart"));
      else update(task);
    });
    for (const button of task.querySelectorAll("button[data-all]")) {
      button.addEventListener("click", () => {
        for (const box of task.querySelectorAll("input[name=shown]")) box.checked = button.dataset.all === "true";
        update(task);
      });
    }
  }
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  });
  const hint = () => {
    for (const frame of document.querySelectorAll(".scroll")) {
      frame.classList.toggle("overflows", frame.scrollWidth > frame.clientWidth + 1);
    }
  };
  document.addEventListener("toggle", hint, true);
  window.addEventListener("resize", hint);
  hint();
  mode.addEventListener("change", drawAll);
  drawAll();
})();
