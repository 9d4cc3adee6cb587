// What both Node clients check with. Not here: any client.
import assert from 'node:assert/strict';

export const port = Number(process.argv[2]);

export function check(what, got, expected) {
  assert.deepEqual(got, expected, what);
}

// Plain objects and maps, whatever prototype a client gives them.
export function plain(value) {
  return value instanceof Map ? Object.fromEntries(value) : { ...value };
}

export async function checkRejects(what, promise, pattern) {
  await assert.rejects(promise, (error) => {
    assert.match(String(error.message), pattern, what);
    return true;
  }, what);
}

// What a listener is called with, one after the other; rejects when nothing comes.
export function inbox() {
  const came = [];
  const waiting = [];
  return {
    put: (...words) => (waiting.length > 0 ? waiting.shift()(words) : came.push(words)),
    next: () => new Promise((resolve, reject) => {
      if (came.length > 0) return resolve(came.shift());
      waiting.push(resolve);
      return setTimeout(() => reject(new Error('no message came')), 60_000).unref();
    }),
  };
}

// Ends the process with the outcome; never hangs.
export function run(name, steps) {
  const timer = setTimeout(() => {
    console.error(`${name}: no end after 110 s`);
    process.exit(2);
  }, 110_000);
  steps().then(() => {
    clearTimeout(timer);
    console.log(`${name} ok`);
    process.exit(0);
  }, (error) => {
    console.error(error);
    process.exit(1);
  });
}
