"""What a page must have for people who hear it or use no mouse, as axe names its serious rules; found by one script."""

from playwright.sync_api import Page

FAULTS = """
() => {
  const faults = [];
  const visible = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest('[aria-hidden=true]');
  const name = (e) =>
    (e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent || e.title || '').trim();
  const say = (rule, e) => faults.push(`${rule}: ${e.outerHTML.slice(0, 120)}`);
  for (const e of document.querySelectorAll('a[href], button, select, summary, input:not([type=hidden])'))
    if (visible(e) && !name(e)) say('has no name', e);
  for (const e of document.querySelectorAll('input:not([type=hidden]), select'))
    if (visible(e) && !e.labels?.length && !e.getAttribute('aria-label')) say('has no label', e);
  for (const e of document.querySelectorAll('svg'))
    if (visible(e) && !(e.getAttribute('role') === 'img' && name(e))) say('picture without a name', e);
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  ids.filter((id, n) => ids.indexOf(id) !== n).forEach((id) => faults.push(`id twice: ${id}`));
  if (document.querySelectorAll('h1').length !== 1) faults.push('not one h1');
  let level = 1;
  for (const e of document.querySelectorAll('h1, h2, h3, h4')) {
    if (+e.tagName[1] > level + 1) say('heading level left out', e);
    level = +e.tagName[1];
  }
  for (const e of document.querySelectorAll('.scroll'))
    if (visible(e) && e.scrollWidth > e.clientWidth && e.tabIndex < 0 && !e.querySelector('a, button'))
      say('scrolls by mouse alone', e);
  const rgb = (css) => (css.match(/[\\d.]+/g) || []).map(Number);
  const srgb = (css) => {  // color(srgb r g b / a), which color-mix computes to, has channels up to 1
    const [r, g, b, a = 1] = rgb(css);
    return css.startsWith('color(') ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const light = (channels) => channels.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = srgb(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || seen.has(e)) continue;
    if (e.closest('svg, script, option') || !visible(e)) continue;
    seen.add(e);
    const style = getComputedStyle(e), [a, b] = [light(srgb(style.color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    if (contrast < (large ? 3 : 4.5)) say(`contrast ${contrast.toFixed(2)}`, e);
  }
  return faults;
}
"""


def faults_of(page: Page) -> list[str]:
    """What is wrong with the page as it is shown now."""
    return list(page.evaluate(FAULTS))
