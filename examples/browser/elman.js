// A language model of an ONNX file in a web page: `elman convert RUN model.onnx` writes the file.
//
//     const model = await openModel(bytes);
//     for await (const text of model.generate("Once upon", { maxTokens: 80 })) write(text);
//
// The file has the step graph (tokens and state in; log probabilities and state out) and, in its
// metadata, the tokenizer. onnxruntime-web computes the graph: `npm install` brings it.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1;

export async function openModel(bytes) {
  const entries = metadata(bytes);
  if (entries.elman?.graph !== "step" || !entries.spellings) {
    throw new Error("This is not the step graph of a language model: elman convert RUN model.onnx");
  }
  return new LanguageModel(await ort.InferenceSession.create(bytes), entries);
}

class LanguageModel {
  constructor(session, entries) {
    Object.assign(this, { session, entries, tokenizer: tokenizerOf(entries) });
  }

  // The state of the empty text.
  initialState() {
    const state = {};
    for (const { name, type, shape } of this.session.inputMetadata) {
      if (!name.startsWith("state.")) continue;
      const row = [this.entries.initial[name.slice("state.".length)] ?? []].flat(Infinity);
      const dims = [1, ...shape.slice(1)];
      const size = dims.reduce((a, b) => a * b, 1);
      const data = type === "int64" ? new BigInt64Array(size) : new Float32Array(size);
      row.forEach((value, i) => (data[i] = type === "int64" ? BigInt(value) : value));
      state[name] = new ort.Tensor(type, data, dims);
    }
    return state;
  }

  // Read a token; return the log probabilities of the next one, and the state.
  async step(token, state) {
    const tokens = new ort.Tensor("int64", BigInt64Array.of(BigInt(token)), [1]);
    const found = await this.session.run({ tokens, ...state });
    const after = { ...state };
    for (const name of Object.keys(state)) {
      after[name] = found[name.replace("state.", "next.")] ?? state[name];
    }
    return { logprobs: found.logprobs.data, state: after };
  }

  // Yield pieces of text that go on from the prompt; temperature 0 takes the most likely token.
  async *generate(prompt, { maxTokens = 100, temperature = 1, random = Math.random } = {}) {
    const { boundary, unknown, ends } = this.entries;
    const ids = [boundary, ...this.tokenizer.encode(prompt)];
    const stream = this.tokenizer.stream(ids.length > 1 ? ids.at(-1) : null);
    let state = this.initialState();
    let logprobs;
    for (const id of ids) ({ logprobs, state } = await this.step(id, state));
    for (let i = 0; i < maxTokens; i++) {
      const token = draw(logprobs, temperature, random, unknown);
      if (ends.includes(token)) break;
      yield stream(token);
      ({ logprobs, state } = await this.step(token, state));
    }
  }
}

function draw(logprobs, temperature, random, excluded) {
  const scores = Array.from(logprobs, (x, i) => (i === excluded ? -Infinity : x));
  const best = scores.reduce((a, x, i) => (x > scores[a] ? i : a), 0);
  if (temperature === 0) return best;
  const shares = scores.map((x) => Math.exp((x - scores[best]) / temperature));
  let left = random() * shares.reduce((a, b) => a + b, 0);
  for (let i = 0; i < shares.length; i++) if ((left -= shares[i]) < 0) return i;
  return best;
}

// Tokenizers: `encode` makes ids of a text; `stream` returns a function from an id to its text.

function tokenizerOf({ kind, tokenizer, spellings, boundary, unknown, lowercase }) {
  const lowered = (text) => (lowercase ? text.toLowerCase() : text);
  if (kind === "byte" || kind === "bpe") return byteLevel(tokenizer, boundary, lowered);
  const ids = new Map(spellings.map((text, id) => [text, id]));
  const id = (text) => ids.get(text) ?? unknown;
  if (kind === "char") {
    return {
      encode: (text) => [...lowered(text)].map(id),
      stream: () => (token) => spellings[token],
    };
  }
  const closing = new Set(",.;:!?)]}»”…%、。，！？；：）】」』");
  const opening = new Set("([{«“¿¡（【「『");
  const word = /<eos>|<unk>|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}\p{M}\p{N}_]+)*|[^\p{L}\p{M}\p{N}_\s]/gu;
  const pattern = kind === "word" ? word : /\S+/g;
  const line = (text) => (lowered(text).match(pattern) ?? []).map(id);
  const spaced = (a, b) => {
    if (a === null || a === boundary || b === boundary) return "";
    const joined = kind === "word" && (closing.has(spellings[b]) || opening.has(spellings[a]));
    return joined ? "" : " ";
  };
  return {
    encode: (text) => text.split("\n").flatMap((l, i) => (i ? [boundary, ...line(l)] : line(l))),
    stream: (previous) => (token) => {
      const text = spaced(previous, token) + (token === boundary ? "\n" : spellings[token]);
      previous = token;
      return text;
    },
  };
}

// Byte-level tokens are spelled with one printable character for each byte, as in GPT-2.
function byteLevel({ model, pre_tokenizer }, boundary, lowered) {
  const printable = (b) => (b > 32 && b < 127) || (b > 160 && b < 256 && b !== 173);
  let next = 256;
  const letters = [...Array(256).keys()].map((b) => String.fromCodePoint(printable(b) ? b : next++));
  const bytes = new Map(letters.map((letter, byte) => [letter, byte]));
  const pieces = [];
  for (const [spelled, id] of Object.entries(model.vocab)) {
    pieces[id] = id === boundary ? [] : [...spelled].map((letter) => bytes.get(letter));
  }
  const ranks = new Map((model.merges ?? []).map((pair, i) => [[pair].flat().join(" "), i]));
  const found = JSON.stringify(pre_tokenizer ?? {}).match(/"Regex":"((?:[^"\\]|\\.)*)"/);
  const pattern = found ? new RegExp(JSON.parse(`"${found[1]}"`), "gu") : /[^]+/g;
  const merged = (stretch) => {
    let parts = Array.from(new TextEncoder().encode(stretch), (byte) => letters[byte]);
    for (;;) {
      let best = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        best = Math.min(best, ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity);
      }
      if (best === Infinity) return parts.map((part) => model.vocab[part]);
      const joined = [];
      for (let i = 0; i < parts.length; i++) {
        const both = ranks.get(`${parts[i]} ${parts[i + 1]}`) === best;
        joined.push(both ? parts[i] + parts[++i] : parts[i]);
      }
      parts = joined;
    }
  };
  return {
    encode: (text) => (lowered(text).match(pattern) ?? []).flatMap(merged),
    stream: () => {
      const decoder = new TextDecoder();
      return (token) => decoder.decode(Uint8Array.from(pieces[token]), { stream: true });
    },
  };
}

// The metadata of an ONNX file: field 14 of its protocol buffer, pairs of key (1) and value (2).
function metadata(bytes) {
  const entries = {};
  for (const [field, pair] of fields(bytes)) {
    if (field !== 14) continue;
    const [key, value] = [...fields(pair)].map(([, text]) => new TextDecoder().decode(text));
    entries[key] = JSON.parse(value);
  }
  return entries;
}

function* fields(bytes) {
  let at = 0;
  const number = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return Number(value);
    }
  };
  while (at < bytes.length) {
    const tag = number();
    const kind = tag & 7;
    if (kind === 0) number();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else {
      const size = number();
      yield [Math.floor(tag / 8), bytes.subarray(at, at + size)];
      at += size;
    }
  }
}
