// Requests to the server: every request of the studio goes through here.

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let askForKey = async () => null;
export function onMissingKey(ask) {
  askForKey = ask;
}

function headers(hasBody) {
  const found = hasBody ? { "Content-Type": "application/json" } : {};
  const key = sessionStorage.getItem("elman-key");
  if (key) found.Authorization = `Bearer ${key}`;
  return found;
}

async function send(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: headers(body !== undefined),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it still running?");
  }
  if (response.status === 401) {
    const key = await askForKey();
    if (key) {
      sessionStorage.setItem("elman-key", key);
      return send(path, body, signal);
    }
  }
  if (!response.ok) throw await explained(response);
  return response;
}

async function explained(response) {
  try {
    const { error } = await response.json();
    return new ApiError(response.status, sentence(error.message), error.code);
  } catch {
    return new ApiError(response.status, `The server answered with ${response.status}.`);
  }
}

// Capitalise a sentence and end it; a first word that is a field's name (max_tokens) stays as it is.
function sentence(text) {
  const whole = /^\w*_/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(whole) ? whole : `${whole}.`;
}

export async function get(path, signal) {
  return (await send(path, undefined, signal)).json();
}

export async function post(path, body, signal) {
  return (await send(path, body, signal)).json();
}

// Yield the pieces of a stream as they arrive.
export async function* stream(path, body, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    waiting += value;
    const events = waiting.split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const piece = JSON.parse(data);
      if (piece.error) throw new ApiError(200, sentence(piece.error.message), piece.error.code);
      yield piece;
    }
  }
}
