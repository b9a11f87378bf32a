// The report's page without a server: sorts and filters the verdicts, reads values off curves, switches methods.
// The address keeps it: #joy_1?hide=DG&hide=PG&paper=off  or  #claims?verdict=reproduced&q=mnist&sort=-n
// A method that is hidden is hidden in every figure.
"use strict";
(() => {
  const table = document.querySelector("table.claims");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const make = (tag, about = {}, ...inside) => {
    const element = Object.assign(document.createElement(tag), about);
    element.append(...inside);
    return element;
  };
  const state = new URLSearchParams();
  let anchor = "";

  const remember = () => {
    const words = state.toString();
    history.replaceState(null, "", `#${anchor}${words ? "?" + words : ""}`);
  };
  const put = (key, value, where) => {
    if (value) state.set(key, value); else state.delete(key);
    anchor = where;
    remember();
  };

  // The table
  const verdict = (row) => row.dataset.verdict;
  const words = [...new Set(rows.map(verdict))];
  const search = make("input", { type: "search", placeholder: "filter", ariaLabel: "filter claims" });
  const buttons = words.map((word) => make("button", { type: "button", textContent: word }));
  const count = make("span", { className: "count" });
  table.before(make("div", { className: "controls" }, search, ...buttons, count));

  const order = words.slice();
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const label = row.cells[column].dataset.label || "id";
    if (label === "verdict") return order.indexOf(verdict(row));
    if (label === "n") return Number((text.match(/[\d,]+/) || ["-1"])[0].replaceAll(",", ""));
    return label === "id" ? rows.indexOf(row) : text.toLowerCase();
  };
  const heads = [...table.tHead.rows[0].cells];
  const apply = () => {
    const sort = state.get("sort") || "";
    const down = sort.startsWith("-");
    const column = heads.findIndex((head) => head.dataset.key === sort.replace("-", ""));
    const shown = (column < 0 ? rows.slice() : rows.slice().sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      return (x < y ? -1 : x > y ? 1 : rows.indexOf(a) - rows.indexOf(b)) * (down ? -1 : 1);
    }));
    body.append(...shown);
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : down ? "descending" : "ascending"));
    const asked = (state.get("q") || "").toLowerCase();
    const wanted = (state.get("verdict") || "").split(",").filter(Boolean);
    let visible = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(asked) || (wanted.length > 0 && !wanted.includes(verdict(row)));
      visible += !row.hidden;
    }
    count.textContent = `${visible} of ${rows.length}`;
    if (search.value !== (state.get("q") || "")) search.value = state.get("q") || "";
    buttons.forEach((button) => button.setAttribute("aria-pressed", wanted.includes(button.textContent)));
  };
  search.addEventListener("input", () => { put("q", search.value, "claims"); apply(); });
  buttons.forEach((button) => button.addEventListener("click", () => {
    const wanted = new Set((state.get("verdict") || "").split(",").filter(Boolean));
    if (!wanted.delete(button.textContent)) wanted.add(button.textContent);
    put("verdict", [...wanted].join(","), "claims");
    apply();
  }));
  heads.forEach((head) => {
    head.dataset.key = head.textContent.split(/[ ,]/)[0];
    const go = () => {
      const key = head.dataset.key;
      put("sort", state.get("sort") === key ? `-${key}` : key, "claims");
      apply();
    };
    head.tabIndex = 0;
    head.addEventListener("click", go);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
  });

  // The figures
  const tip = make("div", { className: "tip", hidden: true });
  document.body.append(tip);
  const short = (x) => (x !== 0 && (Math.abs(x) < 0.001 || Math.abs(x) >= 1e6) ? x.toExponential(2) : x.toLocaleString("en"));
  const figures = [...document.querySelectorAll("svg[data-series]")].map((svg) => {
    const series = JSON.parse(svg.dataset.series);
    const section = svg.closest("section").id;
    for (const each of series) each.element = svg.querySelector(`[id="${svg.dataset.name}--${each.id}"]`);
    const labels = [...new Set(series.filter((each) => each.kind === "curve").map((each) => each.label))];
    const paper = series.some((each) => each.kind === "paper");
    const boxes = [...labels, ...(paper ? ["the paper's points"] : [])].map((label, place) => {
      const box = make("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        if (place === labels.length) put("paper", box.checked ? "" : "off", section);
        else {
          const hidden = new Set(state.getAll("hide"));
          if (box.checked) hidden.delete(label); else hidden.add(label);
          state.delete("hide");
          hidden.forEach((each) => state.append("hide", each));
          anchor = section;
          remember();
        }
        figures.forEach((each) => each());
      });
      return [box, label];
    });
    const show = () => {
      const hidden = state.getAll("hide");
      const off = state.get("paper") === "off";
      for (const each of series) {
        each.hidden = each.kind === "paper" ? off || hidden.includes(each.label) : hidden.includes(each.label);
        if (each.element) each.element.style.display = each.hidden ? "none" : "";
      }
      boxes.forEach(([box, label], place) => { box.checked = place === labels.length ? !off : !hidden.includes(label); });
    };
    if (boxes.length > 1 || paper) {
      const bar = make("div", { className: "controls" }, ...boxes.map(([box, label]) => make("label", {}, box, label)));
      svg.parentElement.after(bar);
    }
    svg.addEventListener("mousemove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = null, least = 14;
      for (const each of series) {
        if (each.hidden || !each.points) continue;
        for (const point of each.points) {
          const away = Math.hypot(point[0] - at.x, point[1] - at.y);
          if (away < least) [best, least] = [[each, point], away];
        }
      }
      tip.hidden = !best;
      if (!best) return;
      const [each, [, , x, y]] = best;
      const n = each.n ? `, n = ${each.n}` : "";
      tip.textContent = `${each.label}${each.kind === "paper" ? " (the paper)" : ""}: ${each.y || "y"} ${short(y)}, ${each.x || "x"} ${short(x)}${n}`;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 260)}px`;
      tip.style.top = `${event.clientY + 14}px`;
    });
    svg.addEventListener("mouseleave", () => { tip.hidden = true; });
    return show;
  });

  const read = () => {
    const [name, asked = ""] = location.hash.slice(1).split("?");
    let place = "";
    try { place = decodeURIComponent(name); } catch { /* no address of this page */ }
    anchor = place;
    [...state.keys()].forEach((key) => state.delete(key));
    new URLSearchParams(asked).forEach((value, key) => state.append(key, value));
    apply();
    figures.forEach((show) => show());
    const target = place && document.getElementById(place);
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", read);
  read();
})();
