// Starts the console: session, pages by the address's fragment, and a poll while someone looks.

import { ApiError, get, signIn, signOut } from "./api.js";
import { element } from "./dom.js";
import { access } from "./page-access.js";
import { deployments } from "./page-deployments.js";
import { models } from "./page-models.js";
import { overview } from "./page-overview.js";
import { start } from "./page-start.js";
import { usage } from "./page-usage.js";

const pages = { overview, deployments, models, usage, access, start };
const pollMs = 3000;
const redrawMs = 30_000; // "5 min ago" grows old without any change of the data

const content = document.getElementById("content");
const bar = document.getElementById("bar");
const live = document.getElementById("live");
const alertBox = document.getElementById("alert");

let shown = null; // the page on the screen and its data: only changes are drawn, and not under a selection
let round = 0; // the newest load; older ones that come late are dropped

function currentName() {
  const name = location.hash.replace(/^#\//, "");
  return name in pages ? name : "overview";
}

function drawNavigation() {
  const name = currentName();
  document.getElementById("navigation").replaceChildren(...Object.entries(pages).map(
    ([each, page]) => element("a", {
      href: `#/${each}`, "aria-current": each === name ? "page" : null,
    }, page.title)));
  document.title = `${pages[name].title} · headrace`;
}

async function refresh() {
  const name = currentName();
  const mine = ++round;
  try {
    const data = await pages[name].load();
    if (mine !== round) return;
    draw(name, data);
    live.textContent = "Live";
    live.classList.remove("stale");
    alertBox.hidden = true;
  } catch (error) {
    if (mine !== round) return;
    report(error);
  }
}

function draw(name, data) {
  const text = `${Math.floor(Date.now() / redrawMs)} ${JSON.stringify(data)}`;
  const sameView = shown?.name === name;
  if (sameView && (shown.text === text || !getSelection().isCollapsed)) return;
  const focused = document.activeElement?.id;
  const page = pages[name];
  content.replaceChildren(element("div", { class: "page" },
    element("div", { class: "heading" }, element("h1", {}, page.title)),
    page.render(data, act)));
  if (focused) document.getElementById(focused)?.focus();
  shown = { name, text };
}

/** Redraw after a change that the page made; `shown` is dropped, so that the page is drawn anew. */
async function act() {
  shown = null;
  await refresh();
}

function report(error) {
  if (error instanceof ApiError && error.status === 401) {
    showSignIn("");
    return;
  }
  live.textContent = "Not live";
  live.classList.add("stale");
  alertBox.textContent = error instanceof ApiError
    ? `${error.message}${shown ? " What you see is the last known state." : ""}`
    : `The console failed: ${error}`;
  alertBox.hidden = false;
}

function showSignIn(problem) {
  round += 1;
  shown = null;
  bar.hidden = true;
  alertBox.hidden = true;
  document.title = "Sign in · headrace";
  const form = document.getElementById("sign-in-form").content.cloneNode(true);
  content.replaceChildren(form);
  document.getElementById("sign-in-problem").textContent = problem;
  document.getElementById("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    tryToken(document.getElementById("token").value.trim());
  });
  document.getElementById("token").focus();
}

async function tryToken(token) {
  try {
    await signIn(token);
    await showConsole();
  } catch (error) {
    showSignIn(error.status === 401 ? "This is not the platform's admin token." : error.message);
  }
}

async function showConsole() {
  bar.hidden = false;
  drawNavigation();
  await refresh();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme === "dark"
    || (!document.documentElement.dataset.theme
      && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = dark ? "light" : "dark";
  localStorage.setItem("theme", theme);
  setTheme(theme);
});

document.getElementById("sign-out").addEventListener("click", async () => {
  await signOut().catch(() => null);
  showSignIn("");
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the page's name
  content.focus();
});

window.addEventListener("hashchange", async () => {
  if (bar.hidden) return;
  drawNavigation();
  await refresh();
  content.focus();
});

window.addEventListener("unhandledrejection", (event) => report(event.reason));

setInterval(() => {
  if (!document.hidden && !bar.hidden) refresh();
}, pollMs);

async function begin() {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") setTheme(theme);
  const token = location.hash.match(/^#token=(.+)$/)?.[1];
  if (token) {
    history.replaceState(null, "", "/#/overview"); // out of the address before anything else
    await tryToken(decodeURIComponent(token));
    return;
  }
  try {
    await get("/status");
    await showConsole();
  } catch (error) {
    showSignIn(error.status === 401 ? "" : error.message);
  }
}

begin();
