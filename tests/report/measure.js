// What a page looks like, in numbers: texts that lie upon one another, that stick out of the window, or that can hardly be read.
(() => {
  const found = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) found.push(`the page scrolls sideways: ${document.documentElement.scrollWidth}`);

  const shown = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const scrolls = (node) => node.closest(".scroll") !== null;
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.textContent.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(parent.tagName) || !shown(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.right < 0) continue;
      texts.push({ left: box.left, right: box.right, top: box.top + scrollY, bottom: box.bottom + scrollY, text: node.textContent.trim(),
        line: node, parent });
    }
  }
  texts.sort((a, b) => a.top - b.top);
  texts.forEach((one, number) => {
    if ((one.left < -1 || one.right > width + 1) && !scrolls(one.parent)) found.push(`sticks out: ${one.text.slice(0, 60)}`);
    for (let next = number + 1; next < texts.length && texts[next].top < one.bottom - 1; next += 1) {
      const two = texts[next];
      const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const down = Math.min(one.bottom, two.bottom) - two.top;
      // Lines of one paragraph share some pixels above and below their letters.
      if (across > 1 && down > 0.35 * Math.min(one.bottom - one.top, two.bottom - two.top)) {
        found.push(`overlap: ${one.text.slice(0, 40)} | ${two.text.slice(0, 40)}`);
      }
    }
  });

  const cards = [...document.querySelectorAll(".card, .tile, header, h2")].filter(shown).map((node) => [node, node.getBoundingClientRect()]);
  cards.forEach(([one, a], number) => cards.slice(number + 1).forEach(([two, b]) => {
    if (one.contains(two) || two.contains(one)) return;
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) {
      found.push(`cards overlap: ${one.textContent.slice(0, 30)} | ${two.textContent.slice(0, 30)}`);
    }
  }));
  for (const box of document.querySelectorAll(".chart")) {
    const outer = box.getBoundingClientRect(), drawing = box.querySelector(".main-svg");
    if (!drawing) { found.push("a chart is not drawn"); continue; }
    const inner = drawing.getBoundingClientRect();
    if (Math.abs(inner.width - outer.width) > 2) found.push(`a chart is ${inner.width} wide in ${outer.width}`);
  }

  // Contrast of text and ground: W3C, Web Content Accessibility Guidelines 2.2, 1.4.3 (text: 4.5).
  const number = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = number(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  for (const { parent, text } of texts) {
    const style = getComputedStyle(parent);
    const colour = number(parent instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(colour), light(ground(parent))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`pale: ${text.slice(0, 40)} ${style.color}`);
  }
  const lefts = new Set(["header", "main", "footer"].map((name) => Math.round(document.querySelector(name).getBoundingClientRect().left)));
  if (lefts.size > 1) found.push(`header, main and footer do not stand below one another: ${[...lefts]}`);
  return { found: [...new Set(found)], texts: texts.length, colour: getComputedStyle(document.body).backgroundColor };
})()
