// Elements are made of texts only: whatever a stream, a key or an error has in it is shown, and never run.

const SHORT = 32;

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A sentence in which `names` stand between backticks.
export function sentence(text, tag = "p", properties = {}) {
  const parts = String(text).split("`");
  const whole = parts.length % 2 === 1;
  const children = whole ? parts.map((part, at) => (at % 2 ? element("code", {}, part) : part)) : [String(text)];
  return element(tag, properties, ...children);
}

export function table(found) {
  const right = new Set(found.right);
  const side = (name) => (right.has(name) ? { class: "right" } : {});
  const head = element("tr", {}, ...found.columns.map((name) => element("th", side(name), name)));
  const kind = (name, cell) => (right.has(name) ? "right" : cell.length <= SHORT ? "short" : "");
  const rows = found.rows.map((row) =>
    element("tr", {}, ...row.map((cell, at) => element("td", { class: kind(found.columns[at], cell) }, cell))));
  const body = [element("thead", {}, head), element("tbody", {}, ...rows)];
  return [
    element("h2", {}, found.title),
    found.rows.length ? element("div", { class: "scroll" }, element("table", {}, ...body)) : null,
    found.note ? sentence(found.note, "p", { class: "note" }) : null,
  ];
}

export function facts(pairs) {
  const cells = pairs.flatMap(([name, value]) => [element("dt", {}, name), sentence(value, "dd")]);
  return element("dl", {}, ...cells);
}
