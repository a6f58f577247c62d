// Asks the admin API. The session is a cookie that no script can read.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, { body, token } = {}) {
  const headers = { "x-headrace-console": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (token !== undefined) headers.authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(`/admin/v1${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(15_000),
    });
  } catch {
    throw new ApiError(0, "The control plane does not answer.");
  }
  if (answer.status === 204) return null;
  const content = await answer.json().catch(() => null);
  if (!answer.ok) {
    throw new ApiError(answer.status, content?.error?.message ?? `HTTP ${answer.status}`);
  }
  return content;
}

const pagesMax = 20;

/** Read one thing. */
export const get = (path) => ask("GET", path);

/** Read a list, over as many pages as it has, within reason, and what else the last page says. */
export async function wholeList(path) {
  const items = [];
  let after = "";
  for (let page = 0; ; page += 1) {
    const mark = path.includes("?") ? "&" : "?";
    const part = await ask("GET", `${path}${mark}limit=500&after=${encodeURIComponent(after)}`);
    items.push(...part.items);
    if (part.next === null || page + 1 === pagesMax) return { ...part, items };
    after = part.next;
  }
}

/** The items of a list alone. */
export const list = async (path) => (await wholeList(path)).items;

/** Make a change: POST, PUT, PATCH or DELETE. */
export const change = (method, path, body) => ask(method, path, { body });

/** Set how many replicas a deployment should have. */
export const scale = (id, replicas) => ask("PATCH", `/deployments/${id}`, { body: { replicas } });

/** Trade the admin token for a session. */
export const signIn = (token) => ask("POST", "/session", { token });

/** Sign in to a local account. */
export const logIn = (login, password) =>
  ask("POST", "/auth/login", { body: { login, password } });

/** End the session. */
export const signOut = () => ask("DELETE", "/session");
