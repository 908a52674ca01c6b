"use strict";
(() => {
  const form = document.getElementById("filters");
  const rows = [...document.querySelectorAll("tbody tr")];

  function filter() {
    const chosen = Object.fromEntries(new FormData(form));
    const words = chosen.words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const fits =
        words.every((word) => row.dataset.words.includes(word)) &&
        (!chosen.package || row.dataset.package === chosen.package) &&
        (!chosen.outcome || row.dataset.outcomes.split(" ").includes(chosen.outcome));
      row.hidden = !fits;
    }
    for (const section of document.querySelectorAll("section")) {
      section.hidden = !section.querySelector("tbody tr:not([hidden])");
    }
    const left = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = left < rows.length ? `${left} of ${rows.length} rows` : "";
  }

  form.addEventListener("input", filter);
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
  document.documentElement.dataset.ready = "yes";
})();
