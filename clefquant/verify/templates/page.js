// Tables sort by a click on a heading, or by Enter or Space on it. A cell may carry data-sort; empty ones stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const fixed = [...body.rows].filter((row) => row.classList.contains("total"));
      const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
      const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
      rows.sort((one, two) => {
        const [a, b] = [key(one), key(two)];
        if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
        const [x, y] = [Number(a), Number(b)];
        const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
        return down ? -order : order;
      });
      body.append(...rows, ...fixed);
    });
  });
}
