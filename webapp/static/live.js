// Fetches the changing parts of the page every two seconds and replaces those that changed; the server escapes all text.
"use strict";

const parts = document.getElementById("parts");
const live = document.getElementById("live");
const statusText = document.getElementById("live-text");
const EVERY_MS = 2000; // fresh enough to watch; the server reads the database at most once a second for all pages

async function refresh() {
  const answer = await fetch(parts.dataset.from, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const asOf = fresh.getElementById("part-state").dataset.now;
  for (const part of fresh.querySelectorAll("[id^=part-]")) {
    const shown = document.getElementById(part.id);
    if (part.outerHTML === shown.outerHTML || shown.contains(document.activeElement)) continue;
    const scrolled = [...shown.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    shown.replaceWith(document.adoptNode(part));
    [...part.querySelectorAll(".scroll")].forEach((box, n) => { box.scrollLeft = scrolled[n] ?? 0; });
  }
  return asOf;
}

async function keepFresh() {
  if (!document.hidden) {
    try {
      statusText.textContent = `as of ${await refresh()} UTC`;
      live.classList.remove("lost");
    } catch (error) {
      statusText.textContent = `no answer (${error.message}); trying again`;
      live.classList.add("lost");
    }
  }
  setTimeout(keepFresh, EVERY_MS);
}

setTimeout(keepFresh, EVERY_MS);
