"use strict";
(() => {
  for (const caption of document.querySelectorAll(".gg-diff figcaption")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "gg-copy";
    button.textContent = "Copy";
    button.addEventListener("click", () => {
      const added = [...caption.parentElement.querySelectorAll("ins")];
      const area = document.createElement("textarea");
      area.value = added.map((line) => line.textContent.slice(2)).join("");
      caption.append(area);
      area.select();
      button.textContent = document.execCommand("copy") ? "Copied" : "Copy failed";
      area.remove();
      button.focus();
    });
    caption.append(button);
  }
  const box = document.getElementById("filters");
  if (!box) return;
  const form = box.querySelector("form");
  const severities = ["error", "warning", "info"];
  const found = [...document.querySelectorAll("#findings article")].map((article) => ({
    article,
    details: article.querySelector("details"),
    codes: article.dataset.codes.split(" "),
    severities: article.dataset.severities.split(" "),
    files: JSON.parse(article.dataset.files),
    tests: JSON.parse(article.dataset.tests),
    text: null,
  }));
  const field = (name) => form.elements.namedItem(name);
  const value = (name) => (field(name) ? field(name).value : "");

  function words(one) {
    if (one.text === null) {
      const said = one.article.querySelector(".gg-message");
      const head = one.article.querySelector("summary");
      one.text = `${head.textContent} ${said.textContent} ${one.tests.join(" ")}`.toLowerCase();
    }
    return one.text;
  }

  function filter() {
    const [code, test, file] = ["code", "test", "file"].map(value);
    const wanted = value("text").trim().toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const one of found) {
      const fits =
        one.severities.some((name) => field(name).checked) &&
        (!code || one.codes.includes(code)) &&
        (!test || one.tests.includes(test)) &&
        (!file || one.files.includes(file)) &&
        wanted.every((word) => words(one).includes(word));
      one.article.hidden = !fits;
      shown += fits;
    }
    document.getElementById("none").hidden = shown > 0;
    field("shown").value = `${shown} of ${found.length} shown`;
  }

  function remember() {
    const state = new URLSearchParams();
    for (const name of ["text", "code", "test", "file"]) if (value(name)) state.set(name, value(name));
    for (const name of severities) {
      if (field(name).checked !== field(name).defaultChecked) state.set(name, +field(name).checked);
    }
    const hash = state.toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  function restore() {
    const hash = location.hash.slice(1);
    const target = /^f\d+$/.test(hash) && document.getElementById(hash);
    if (target) {
      for (const name of target.dataset.severities.split(" ")) field(name).checked = true;
      target.querySelector("details").open = true;
    } else if (hash.includes("=")) {
      for (const [name, wanted] of new URLSearchParams(hash)) {
        const control = field(name);
        if (control && severities.includes(name)) control.checked = wanted === "1";
        else if (control && ["text", "code", "test", "file"].includes(name)) control.value = wanted;
      }
    }
    filter();
    if (target) target.scrollIntoView();
  }

  const changed = () => {
    filter();
    remember();
  };
  form.addEventListener("input", changed);
  form.addEventListener("change", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    setTimeout(() => {
      for (const name of severities) field(name).checked = !field(name).disabled;
      changed();
    });
  });
  const button = field("open");
  button.addEventListener("click", () => {
    const open = button.textContent === "Open all";
    for (const one of found) if (!one.article.hidden) one.details.open = open;
    button.textContent = open ? "Close all" : "Open all";
  });
  window.addEventListener("hashchange", restore);
  box.hidden = false;
  box.open = window.innerWidth > 640;
  restore();
})();
