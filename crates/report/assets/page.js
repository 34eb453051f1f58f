"use strict";
// Sorting: the header of a column becomes a button. Numbers sort as numbers, rows without a value stay last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const descends = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", descends ? "descending" : "ascending");
      const rows = [...body.rows];
      const isNumeric = rows.some((row) => "number" in row.cells[column].dataset);
      const key = (row) => {
        const cell = row.cells[column];
        return isNumeric ? parseFloat(cell.dataset.number ?? "NaN") : cell.textContent.trim();
      };
      const isLast = (value) => Number.isNaN(value) || value === "";
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (isLast(x) || isLast(y)) return isLast(x) - isLast(y);
        const order = isNumeric ? x - y : x.localeCompare(y, undefined, { numeric: true });
        return descends ? -order : order;
      });
      body.append(...rows);
    });
  });
}
// A row and the points of its name light up together; a click on either shows the other.
const rows = [...document.querySelectorAll("tr[data-name]")];
const marks = [...document.querySelectorAll(".mark[data-name]")];
const named = (items, name) => items.filter((item) => item.dataset.name === name);
const isShown = (item) => item.getClientRects().length > 0;
for (const [from, to] of [[rows, marks], [marks, rows]]) {
  for (const item of from) {
    const name = item.dataset.name;
    if (named(to, name).length === 0) continue;
    item.classList.add("has-points");
    const link = (on) => [...named(rows, name), ...named(marks, name)].forEach((x) => x.classList.toggle("linked", on));
    item.addEventListener("pointerenter", () => link(true));
    item.addEventListener("pointerleave", () => link(false));
    item.addEventListener("click", () => {
      const target = named(to, name).find(isShown);
      if (target) target.scrollIntoView({ block: "center", behavior: "smooth" });
    });
  }
}
// A button beside each listing copies it.
for (const listing of document.querySelectorAll(".listing")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(listing.querySelector("pre").textContent);
    button.textContent = "Copied";
  });
  listing.append(button);
}
