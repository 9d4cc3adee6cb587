// A18: ioredis' cluster client, pointed at the proxy: it finds one node that owns every slot, or one
// for each announced port.
//
//     NODE_MODULES=… node ioredis_cluster.mjs PORT...
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(process.env.NODE_MODULES + '/');
const { Cluster } = require('ioredis');
const ports = process.argv.slice(2).map(Number);

const cluster = new Cluster([{ host: '127.0.0.1', port: ports[0] }]);
await new Promise((resolve, reject) => {
    cluster.once('ready', resolve);
    cluster.once('error', reject);
});
assert.equal(cluster.nodes('master').length, ports.length);
for (let n = 0; n < 200; n++) assert.equal(await cluster.set(`io:${n}`, n), 'OK');
const got = await Promise.all(Array.from({ length: 200 }, (_, n) => cluster.get(`io:${n}`)));
assert.deepEqual(got, Array.from({ length: 200 }, (_, n) => String(n)));
const replies = await cluster.pipeline().incr('{io}a').incr('{io}a').del('{io}a').exec();
assert.deepEqual(replies, [[null, 1], [null, 2], [null, 1]]);
assert.equal(await cluster.eval('return KEYS[1]', 1, 'io:k'), 'io:k');
const keys = new Set();
let cursor = '0';
do {
    const [next, some] = await cluster.nodes('master')[0].scan(cursor, 'MATCH', 'io:*', 'COUNT', 500);
    some.forEach((key) => keys.add(key));
    cursor = next;
} while (cursor !== '0');
assert.equal(keys.size, 200);
for (const key of keys) assert.equal(await cluster.del(key), 1);
await cluster.quit();
console.log('ioredis cluster: ok');
