// Starts the console: session, pages by the address's fragment, and events while someone looks.

import { ApiError, get, logIn, signIn, signOut } from "./api.js";
import { element } from "./dom.js";
import { Events } from "./events.js";
import { members, serviceAccounts, tenants } from "./page-access.js";
import { audit, webhooks } from "./page-audit.js";
import { costs } from "./page-costs.js";
import { deployment } from "./page-deployment.js";
import { deployments, replicas } from "./page-deployments.js";
import { explain } from "./page-explain.js";
import { keys, limits } from "./page-keys.js";
import { models } from "./page-models.js";
import { invoice } from "./page-invoice.js";
import { invoices } from "./page-invoices.js";
import { statement, wallets } from "./page-money.js";
import { overview } from "./page-overview.js";
import { nodes } from "./page-nodes.js";
import { payments } from "./page-payments.js";
import { playground } from "./page-playground.js";
import { requests } from "./page-requests.js";
import { settings } from "./page-settings.js";
import { start } from "./page-start.js";
import { prices } from "./page-prices.js";
import { terms } from "./page-terms.js";
import { usage } from "./page-usage.js";
import { chooseView } from "./view.js";

const pages = {
  overview, playground, keys, limits, start, deployments, deployment, replicas, nodes, models,
  explain, usage, requests, invoices, invoice, payments, wallets, statement, prices, terms, costs, tenants, members,
  "service-accounts": serviceAccounts, webhooks, audit, settings,
};
const redrawMs = 30_000; // "5 min ago" grows old without any change of the data
const readMs = 10_000; // who has not moved the pointer for so long reads no value off a chart

const content = document.getElementById("content");
const bar = document.getElementById("bar");
const live = document.getElementById("live");
const alertBox = document.getElementById("alert");

let shown = null; // the page on the screen and its data: only changes are drawn, and not under a selection
let round = 0; // the newest load; older ones that come late are dropped

let caller = null; // who signed in, and what they may do

function currentName() {
  const name = location.hash.replace(/^#\//, "").split("?")[0];
  return Object.hasOwn(pages, name) && isOpen(pages[name]) ? name : "overview";
}

/** What the address says besides the page's name, as `#/requests?model=small`. */
function parameters() {
  return Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
}

function isOpen({ needs }) {
  return !needs || caller.is_operator || (needs !== "operator" && caller.may(needs));
}

async function readCaller() {
  const [me, status] = await Promise.all([get("/auth/me"), get("/status")]);
  const permissions = new Set(me.grants.flatMap((grant) => grant.permissions));
  caller = {
    ...me,
    view: chooseView(me, () => act().then(() => drawNavigation())),
    may: (permission) => me.is_operator || permissions.has(permission),
    gateway: status.gateway_url ?? `${location.protocol}//${location.hostname}:8080`,
  };
  document.getElementById("who").textContent = me.name;
  document.getElementById("version").textContent = `headrace ${status.version}`;
}

function drawNavigation() {
  const name = currentName();
  const open = Object.entries(pages).filter(([, page]) => isOpen(page) && !page.below);
  const groups = [...new Set(open.map(([, page]) => page.group))];
  document.getElementById("navigation").replaceChildren(...groups.map((group) =>
    element("div", { class: "group" }, group ? element("div", { class: "group-name" }, group) : null,
      open.filter(([, page]) => page.group === group).map(([each, page]) => element("a", {
        href: `#/${each}`, "aria-current": each === (pages[name].below ?? name) ? "page" : null,
      }, page.title)))));
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${pages[name].title} · headrace`;
}

async function refresh() {
  const name = currentName();
  const mine = ++round;
  try {
    const data = await pages[name].load(caller, parameters());
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

let pointedAt = 0;
document.addEventListener("pointermove", () => { pointedAt = Date.now(); });

/** Whether somebody selects text or reads a chart, which a redraw would take away. */
function isBusy() {
  const pointsAtChart = document.querySelector(".chart-hold:hover") !== null;
  return !getSelection().isCollapsed || (pointsAtChart && Date.now() - pointedAt < readMs);
}

function draw(name, data) {
  const text = `${Math.floor(Date.now() / redrawMs)} ${JSON.stringify(data)}`;
  const sameView = shown?.name === name && shown.address === location.hash;
  if (sameView && (pages[name].still || shown.text === text || isBusy())) return;
  const focused = document.activeElement?.id;
  const page = pages[name];
  const heading = element("div", { class: "heading" },
    element("h1", {}, page.heading?.(data) ?? page.title));
  const view = element("div", { class: "page" }, heading, page.render(data, act, caller));
  raiseHead(heading, view);
  content.replaceChildren(view);
  if (focused) refocus(document.getElementById(focused));
  shown = { name, text, address: location.hash };
}

function refocus(node) {
  node?.focus();
  if (node?.type === "search") node.setSelectionRange(node.value.length, node.value.length);
}

/** Put the note and the actions of a first card that is called as its page beside the page's name. */
function raiseHead(heading, view) {
  const head = view.querySelector(".card-head");
  if (head?.querySelector("h2")?.textContent !== heading.textContent) return;
  const card = head.parentElement;
  head.querySelector("h2").remove();
  heading.append(...head.childNodes);
  head.remove();
  if (card.childElementCount === 0) card.remove();
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
  events.listen(false);
  bar.hidden = true;
  alertBox.hidden = true;
  document.title = "Sign in · headrace";
  const form = document.getElementById("sign-in-form").content.cloneNode(true);
  content.replaceChildren(form);
  document.getElementById("sign-in-problem").textContent = problem;
  document.getElementById("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    const login = document.getElementById("login").value.trim();
    const secret = document.getElementById("token").value.trim();
    if (login) tryPassword(login, secret);
    else tryToken(secret);
  });
  document.getElementById("login").focus();
  offerSingleSignOn();
}

async function offerSingleSignOn() {
  const methods = await get("/auth/methods").catch(() => null);
  const link = document.getElementById("single-sign-on");
  if (link && methods?.single_sign_on_path) {
    link.href = methods.single_sign_on_path;
    link.hidden = false;
  }
}

async function tryPassword(login, password) {
  try {
    await logIn(login, password);
    await showConsole();
  } catch (error) {
    showSignIn(error.message);
  }
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
  await readCaller();
  bar.hidden = false;
  drawNavigation();
  await refresh();
  events.listen(true);
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
  shown = null; // charts are drawn in the theme's colours
  if (!pages[currentName()].still) refresh();
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
  content.focus({ preventScroll: true });
  scrollTo(0, 0); // the page's name is below the bar, which stays
});

window.addEventListener("unhandledrejection", (event) => report(event.reason));
document.addEventListener("focusin", (event) => {
  if (event.target.matches("nav a")) event.target.scrollIntoView({ block: "nearest" });
});

// Every page is drawn anew when the store changed, and those that show traffic also as time goes by.
const events = new Events((kind) => {
  if (!bar.hidden && (kind === "change" || pages[currentName()].ticks)) refresh();
});

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
    await showConsole();
  } catch (error) {
    showSignIn(error.status === 401 ? "" : error.message);
  }
}

begin();
