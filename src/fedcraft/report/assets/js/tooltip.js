// One tooltip for all charts: it follows the pointer, the finger and the arrow keys.
const tooltip = document.getElementById("tooltip");
let shownAt = 0;

function showTooltip(x, y, title, rows) {
  tooltip.replaceChildren(html("b", {}, title));
  if (rows.length) {
    const table = html("table");
    for (const row of rows) {
      const dot = row.style ? html("span", { class: "dot", style: row.style }, "● ") : "";
      table.append(html("tr", {}, html("th", {}, dot, row.name), html("td", {}, row.value)));
    }
    tooltip.append(table);
  }
  tooltip.hidden = false;
  shownAt = scrollY;
  const box = tooltip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
  tooltip.style.left = `${clamp(left, 4, Math.max(4, innerWidth - box.width - 4))}px`;
  tooltip.style.top = `${clamp(y - box.height - 12, 4, Math.max(4, innerHeight - box.height - 4))}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

// Make `root` answer to pointer and keys. `find(x, y)` names a place by chart coordinates, `show`
// returns where it is and what to say: {x, y, title, rows}; places run from 0 to count - 1. A click
// or Enter calls `open(place)`, if there is one.
function interactive(root, width, count, find, show, leave = () => {}, open = null) {
  let place = -1;
  const rest = () => {
    place = -1;
    hideTooltip();
    leave();
  };
  const go = (next) => {
    if (next < 0 || next >= count) return;
    place = next;
    const spot = show(place);
    const box = root.getBoundingClientRect();
    const scale = box.width / width;
    showTooltip(box.left + spot.x * scale, box.top + spot.y * scale, spot.title, spot.rows);
  };
  const follow = (event) => {
    const box = root.getBoundingClientRect();
    const scale = width / box.width;
    const next = find((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    if (next < 0) rest();
    else go(next);
  };
  root.setAttribute("tabindex", "0");
  root.addEventListener("pointermove", follow);
  root.addEventListener("pointerdown", follow);
  root.addEventListener("pointerleave", rest);
  const choose = () => {
    const at = place;
    rest();
    if (at >= 0) open(at);
  };
  if (open) root.addEventListener("click", choose);
  root.addEventListener("blur", rest);
  root.addEventListener("keydown", (event) => {
    if (open && event.key === "Enter") choose();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") rest();
    if (!step) return;
    event.preventDefault();
    go(clamp(place + step, 0, count - 1));
  });
}
addEventListener(
  "scroll",
  () => {
    if (Math.abs(scrollY - shownAt) > 20) hideTooltip();
  },
  { passive: true },
);
