// The page to explore a run. It asks the server that it came from. What the server says is shown as text, never read as HTML, and
// whose page is shown stands in the address, so that the browser's way back works.
(() => {
  "use strict";
  const FACTS = 100, ROWS = 12, RELATIONS = 12, EACH = 4, LIKELY = 10, NEAR = 30, SIMILAR = 10, WAIT = 120;
  const byId = (id) => document.getElementById(id);
  const KEY = "kgdist-token";
  let info = {}, asking = 0, turn = 0, current = null;

  // ---- elements

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...children);
    return node;
  }

  const pieces = (text) => (text.match(/[^_/:,;-]*[_/:,;-]+|[^_/:,;-]+$/g) ?? [text]).flatMap((piece) => [piece, make("wbr")]);

  // A name, after its label where it has one.
  function called(name, label) {
    const whole = make("span", { class: "name" });
    if (label) whole.append(make("span", { class: "name label" }, ...pieces(label)), " ", make("span", { class: "name id" }, ...pieces(name)));
    else whole.append(...pieces(name));
    return whole;
  }

  const address = (name) => `#${new URLSearchParams({ entity: name })}`;
  const link = (name, label) => make("a", { href: address(name) }, called(name, label));
  const percent = (part) => (part >= 0.995 ? ">99%" : part < 0.005 ? "<1%" : `${Math.round(100 * part)}%`);
  const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
  const most = (k) => Math.min(k, info.max_k);

  function tell(text, near = []) {
    const box = byId("message");
    box.hidden = !text;
    box.replaceChildren(text ?? "");
    if (near.length) box.append(" Did you mean ", ...near.flatMap((name, at) => [at ? " or " : "", link(name)]), "?");
  }

  // ---- the server

  class Refused extends Error {}

  function busy(more) {
    asking += more;
    document.documentElement.dataset.drawn = asking ? "no" : "yes"; // for who waits until the page is whole
  }

  async function ask(path, words, body) {
    busy(1);
    try {
      const query = words ? `?${new URLSearchParams(words)}` : "", token = sessionStorage.getItem(KEY);
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const more = body ? { method: "POST", body: JSON.stringify(body) } : {};
      const answer = await fetch(path + query, { headers, cache: "no-store", ...more });
      const found = await answer.json();
      if (answer.ok) return found;
      if (answer.status === 401) lock();
      throw Object.assign(new Refused(found.error), { near: found.near ?? [] });
    } catch (error) {
      if (error instanceof Refused) throw error;
      throw Object.assign(new Refused("The server does not answer. Is it still running?"), { near: [] });
    } finally {
      busy(-1);
    }
  }

  // What a task finds out is told; nothing is left unsaid.
  const tried = (task) => task.catch((error) => {
    if (!(error instanceof Refused)) throw error;
    tell(error.message, error.near);
  });

  function lock() {
    for (const id of ["search", "start", "found"]) byId(id).hidden = true;
    byId("door").hidden = false;
    byId("token").focus();
  }

  // ---- a field that completes names

  function completes(input, list, kind, chosen) {
    let items = [], at = -1, asked = null, timer = 0, turn = 0;

    function close() {
      clearTimeout(timer);
      list.hidden = true;
      at = -1;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
    }

    function mark(number) {
      at = number;
      [...list.children].forEach((option, place) => option.setAttribute("aria-selected", String(place === at)));
      if (at < 0) return;
      input.setAttribute("aria-activedescendant", list.children[at].id);
      list.children[at].scrollIntoView({ block: "nearest" });
    }

    function open() {
      list.replaceChildren(...items.map((item, number) => {
        const option = make("li", { id: `${list.id}-${number}`, role: "option", "aria-selected": "false" }, called(item.name, item.label));
        option.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
        option.addEventListener("click", () => choose(item.name));
        return option;
      }));
      list.hidden = !items.length;
      input.setAttribute("aria-expanded", String(items.length > 0));
      at = -1;
      input.removeAttribute("aria-activedescendant");
    }

    async function look() {
      const text = input.value, own = ++turn;
      const found = text ? await ask("entities", { q: text, kind, k: most(8) }) : { names: [] };
      if (own !== turn) return false;
      asked = text;
      items = found.names.map((name, number) => ({ name, label: found.labels?.[number] }));
      return true;
    }

    function choose(name) {
      close();
      turn += 1; // what is still asked for comes too late
      input.value = name;
      chosen(name);
    }

    // Enter: what is marked, or else the first that the text may mean, or else the text, for the server to say what is like it.
    async function enter() {
      if (!list.hidden && at >= 0) return choose(items[at].name);
      clearTimeout(timer);
      if (asked !== input.value && !(await look())) return;
      choose(items.length && input.value ? items[0].name : input.value);
    }

    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => tried(look().then((fresh) => fresh && document.activeElement === input && open())), WAIT);
    });
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && !list.hidden) mark((at + step + items.length + (at < 0 && step < 0)) % items.length);
      else if (event.key === "Enter") tried(enter());
      else if (event.key === "Escape" && !list.hidden) close();
      else return;
      event.preventDefault();
    });
    input.addEventListener("blur", close);
  }

  // ---- facts

  // The other entity of a triple, seen from one of its ends.
  const other = (row, side) => ({ name: row[side], label: row[`${side}_label`] });
  const sideOf = (row) => (row.head === current ? "tail" : "head"); // where the other one stands
  const arrow = (row, side) => [side === "tail" ? "→ " : "← ", called(row.relation, row.relation_label)];

  let explanations = 0;

  // A button that explains the triple of `row` below it.
  function why(row) {
    const id = `why-${(explanations += 1)}`;
    const button = make("button", { type: "button", "aria-expanded": "false", "aria-controls": id,
      "aria-label": `why: ${row.head}, ${row.relation}, ${row.tail}` }, "why?");
    const box = make("div", { class: "why", id });
    box.hidden = true;
    button.addEventListener("click", () => tried((async () => {
      const opened = button.getAttribute("aria-expanded") === "true";
      if (!opened && !box.childElementCount) {
        const { head, relation, tail } = row;
        explain(box, await ask("explain", null, { head, relation, tail }));
      }
      button.setAttribute("aria-expanded", String(!opened));
      box.hidden = opened;
    })()));
    return [button, box];
  }

  function explain(box, found) {
    const parts = [`score ${found.score.toPrecision(4)}`];
    if (found.probability !== undefined) parts.push(`probability ${percent(found.probability)}`);
    parts.push(`rank ${found.tail_rank.toLocaleString("en")} among tails, ${found.head_rank.toLocaleString("en")} among heads`);
    if (found.known !== undefined) parts.push(found.known ? "known from the data" : "not in the data");
    box.append(make("p", {}, `${parts.join("; ")}.`));
    if (!found.nearest_facts.length) {
      box.append(make("p", { class: "soft" }, info.facts ? "No known fact of this relation is like it." : "The data of the run are not here."));
      return;
    }
    const ends = (fact, side) => link(fact[side], fact[`${side}_label`]);
    box.append(make("p", { class: "soft" }, "The known facts most like it, by their entities:"), make("ol", {}, ...found.nearest_facts.map((fact) =>
      make("li", {}, ends(fact, "head"), " → ", called(fact.relation, fact.relation_label), " → ", ends(fact, "tail"),
        make("span", { class: "soft" }, ` ${fact.similarity.toFixed(2)}`)))));
  }

  function showFacts(found) {
    const groups = new Map();
    for (const row of found.facts) {
      const side = sideOf(row), key = JSON.stringify([side, row.relation]);
      if (!groups.has(key)) groups.set(key, { side, rows: [] });
      groups.get(key).rows.push(row);
    }
    const box = byId("facts"), late = [];
    let shown = 0;
    box.replaceChildren();
    for (const { side, rows } of groups.values()) {
      const items = rows.map((row) => {
        const { name, label } = other(row, side);
        return make("li", {}, make("div", {}, link(name, label)), ...why(row));
      });
      const title = make("h4", {}, ...arrow(rows[0], side)), list = make("ul", { class: "rows" }, ...items);
      late.push(...items.slice(Math.max(0, ROWS - shown)), ...(shown >= ROWS ? [title] : []));
      shown += items.length;
      box.append(title, list);
    }
    if (late.length) {
      late.forEach((item) => { item.hidden = true; });
      const more = make("button", { type: "button", class: "more" }, `Show ${shown - ROWS} more`);
      more.addEventListener("click", () => {
        late.forEach((item) => { item.hidden = false; });
        more.remove();
        late.find((item) => item.tagName === "LI").querySelector("a").focus();
      });
      box.append(more);
    }
    const all = found.as_head + found.as_tail, part = all > shown ? `; ${shown} of them are here` : "";
    byId("facts-caption").textContent = !info.facts ? "The data of the run are not here: start kgdist-serve with --data_path."
      : all ? `From train, valid and test: → of which it is the head, ← of which it is the tail${part}.` : "The data say nothing of it.";
    byId("counts").textContent = info.facts ? `${counted(found.as_head, "fact")} as a head, ${found.as_tail.toLocaleString("en")} as a tail` : "";
    return [...groups.values()].sort((a, b) => b.rows.length - a.rows.length).slice(0, RELATIONS)
      .map(({ side, rows }) => ({ side, relation: rows[0].relation }));
  }

  // ---- likely facts

  async function showLikely(pairs) {
    const own = turn, asks = pairs.slice(0, info.max_questions), one = asks.length === 1;
    const questions = asks.map(({ side, relation }) => ({ [side === "tail" ? "head" : "tail"]: current, relation }));
    const found = await ask("predict", null, { k: most(one ? LIKELY : EACH), exclude_known: info.facts, questions });
    if (own !== turn) return;
    const rows = found.results.flatMap(({ answers }, number) => answers.map((row) => ({ ...row, side: asks[number].side })))
      .filter((row) => one || row.head !== row.tail).sort((a, b) => b.score - a.score).slice(0, LIKELY);
    const list = byId("likely");
    list.className = `rows ${info.calibrated ? "counted" : "scored"}`;
    list.replaceChildren(...rows.map((row) => {
      const { name, label } = other(row, row.side), item = make("li", {}, make("div", {}, link(name, label), make("small", {}, ...arrow(row, row.side))));
      if (info.calibrated) {
        const bar = make("i");
        bar.style.setProperty("--part", `${100 * row.probability}%`);
        item.append(bar, make("b", {}, percent(row.probability)));
      } else item.append(make("b", {}, row.score.toPrecision(4)));
      item.append(...why(row));
      return item;
    }));
    const number = info.calibrated ? "with the probability of the score alone: among the best of many, fewer are true"
      : "with their score, which has no probability: the run is not calibrated";
    byId("likely-caption").textContent = `${info.facts ? "Not in the data, the likeliest first" : "The likeliest first"}, ${number}.`;
  }

  let usual = [];

  async function choices() {
    if (usual.length) return usual;
    const { names } = await ask("entities", { q: "", kind: "relation", k: most(RELATIONS / 2) });
    return names.flatMap((relation) => [{ side: "tail", relation }, { side: "head", relation }]);
  }

  async function narrow() {
    tell();
    const relation = byId("relation").value, side = byId("side").value;
    await showLikely(relation ? [{ side, relation }] : await choices());
  }

  // ---- similar ones, and the map

  function showSimilar(found) {
    byId("similar").replaceChildren(...found.answers.slice(0, SIMILAR).map((row) => {
      const bar = make("i");
      bar.style.setProperty("--part", `${100 * Math.max(0, row.similarity)}%`);
      return make("li", {}, make("div", {}, link(row.entity, row.entity_label)), bar, make("b", {}, row.similarity.toFixed(2)));
    }));
  }

  let drawn = null;
  const SVG = "http://www.w3.org/2000/svg", LETTERS = 26;

  function part(tag, attributes, ...children) {
    const node = document.createElementNS(SVG, tag);
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...children);
    return node;
  }

  // Points where the server put them, and as many names as find room, the most similar first.
  function drawMap() {
    const box = byId("map");
    if (!drawn || !box.clientWidth) return;
    const width = box.clientWidth, height = box.clientHeight, margin = { x: Math.min(70, width / 6), y: 26 };
    const [xs, ys] = [0, 1].map((axis) => drawn.map(({ place }) => place[axis]));
    const range = (values) => [Math.min(...values), Math.max(...values)];
    const [[left, right], [low, high]] = [range(xs), range(ys)]; // one unit for both, so that distances are right
    const unit = Math.min((width - 2 * margin.x) / (right - left || 1), (height - 2 * margin.y) / (high - low || 1));
    const points = drawn.map(({ name, label, place: [x, y] }) => ({ name, label,
      x: width / 2 + (x - (left + right) / 2) * unit, y: height / 2 - (y - (low + high) / 2) * unit }));
    const svg = part("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": "map-title map-caption" });
    box.replaceChildren(svg);
    const marks = points.map(({ name, label, x, y }, number) => {
      const mark = part("a", number ? { href: address(name), tabindex: "-1" } : { class: "here" }, part("title", {}, label ?? name),
        part("circle", { cx: x, cy: y, r: number ? 5 : 7 }));
      return mark;
    });
    svg.append(...[...marks].reverse());
    const taken = points.map(({ x, y }) => ({ left: x - 7, right: x + 7, top: y - 7, bottom: y + 7 }));
    points.forEach(({ name, label, x, y }, number) => {
      const letters = [...(label ?? name)], text = part("text", {}, letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : letters.join(""));
      marks[number].append(text);
      const { width: wide, height: high } = text.getBBox(), space = 2;
      const spots = [[x + 10, y - high / 2], [x - 10 - wide, y - high / 2], [x - wide / 2, y - 10 - high], [x - wide / 2, y + 10]];
      const free = spots.map(([left, top]) => ({ left: left - space, right: left + wide + space, top, bottom: top + high })).find((spot) =>
        spot.left >= 0 && spot.right <= width && spot.top >= 0 && spot.bottom <= height && taken.every((seen, place) => place === number
          || spot.right < seen.left || spot.left > seen.right || spot.bottom < seen.top || spot.top > seen.bottom));
      if (!free) return text.remove();
      taken.push(free);
      text.setAttribute("x", free.left + space);
      text.setAttribute("y", free.bottom - high * 0.25);
    });
  }

  async function showNeighbours() {
    const own = turn;
    const found = await ask("similar", { entity: current, k: most(NEAR), map: true });
    if (own !== turn) return;
    showSimilar(found);
    const ends = [{ name: current, label: byId("title").dataset.label }, ...found.answers.map((row) => ({ name: row.entity, label: row.entity_label }))];
    drawn = ends.map((end, number) => ({ ...end, label: end.label || undefined, place: found.map[number] }));
    byId("map-caption").textContent = `It and the ${drawn.length - 1} entities most similar to it, along the two directions in which they differ most.`;
    drawMap();
  }

  // ---- what the address says

  async function show() {
    const name = new URLSearchParams(location.hash.slice(1)).get("entity"), own = (turn += 1);
    tell();
    byId("start").hidden = name !== null;
    if (name === null) {
      byId("found").hidden = true;
      document.title = `${info.run} · kgdist`;
      const some = await ask("entities", { q: "", k: most(8) });
      byId("some").replaceChildren(...some.names.map((each, number) => make("li", {}, link(each, some.labels?.[number]))));
      return;
    }
    byId("found").setAttribute("aria-busy", "true");
    try {
      const found = await ask("facts", { entity: name, k: most(FACTS) });
      if (own !== turn) return;
      current = found.entity;
      const title = byId("title");
      title.dataset.label = found.entity_label ?? "";
      title.replaceChildren(called(current, found.entity_label));
      document.title = `${found.entity_label ?? current} · ${info.run}`;
      byId("entity").value = "";
      byId("relation").value = "";
      byId("found").hidden = false;
      usual = showFacts(found);
      title.focus();
      await Promise.all([choices().then((pairs) => own === turn && showLikely(pairs)), showNeighbours()]);
    } catch (error) {
      if (own === turn) throw error;
    } finally {
      byId("found").removeAttribute("aria-busy");
    }
  }

  function go(name) {
    if (!name) return;
    if (location.hash === address(name)) tried(show());
    else location.hash = address(name);
  }

  async function begin() {
    info = await ask("healthz");
    byId("door").hidden = info.run !== undefined;
    if (info.run === undefined) return lock();
    byId("run").replaceChildren(called(info.run));
    byId("about").textContent = [info.model, info.dataset, `${info.entities.toLocaleString("en")} entities`,
      `${info.relations.toLocaleString("en")} relations`].join(" · ");
    byId("search").hidden = false;
    await show();
  }

  byId("door").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, byId("token").value.trim());
    byId("token").value = "";
    tried(begin().then(() => byId("door").hidden ? byId("entity").focus() : tell("That is not the server's token.")));
  });
  for (const id of ["search", "ask"]) byId(id).addEventListener("submit", (event) => event.preventDefault());
  completes(byId("entity"), byId("entities"), "entity", go);
  completes(byId("relation"), byId("relations"), "relation", () => tried(narrow()));
  byId("side").addEventListener("change", () => byId("relation").value && tried(narrow()));
  addEventListener("hashchange", () => tried(show()));
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT)$/.test(event.target.tagName) || byId("search").hidden) return;
    event.preventDefault();
    byId("entity").focus();
  });
  new ResizeObserver(drawMap).observe(byId("map"));
  tried(begin());
})();
