// node-redis through the proxy. Argument: port. NODE_MODULES says where the package is.
import { createRequire } from 'node:module';
import { check, checkRejects, inbox, plain, port, run } from './node_common.mjs';

const { createClient } = createRequire(`${process.env.NODE_MODULES}/`)('redis');

async function commands(client) {
  check('ping', await client.ping(), 'PONG');
  check('set', await client.set('nr:a', '1'), 'OK');
  check('get', await client.get('nr:a'), '1');
  check('get absent', await client.get('nr:absent'), null);
  check('incrBy', await client.incrBy('nr:a', 41), 42);
  const keys = Array.from({ length: 50 }, (_, i) => `nr:many:${i}`);
  check('mSet', await client.mSet(keys.flatMap((key) => [key, key])), 'OK');
  check('mGet', await client.mGet([...keys, 'nr:absent']), [...keys, null]);
  check('exists', await client.exists(keys), 50);
  check('unlink', await client.unlink(keys.slice(0, 10)), 10);
  check('del', await client.del(keys), 40);
  check('hSet', await client.hSet('nr:h', { a: '1', b: '2' }), 2);
  check('hGetAll', plain(await client.hGetAll('nr:h')), { a: '1', b: '2' });
  check('hmGet', await client.hmGet('nr:h', ['a', 'x']), ['1', null]);
  check('rPush', await client.rPush('nr:l', ['a', 'b', 'c']), 3);
  check('lRange', await client.lRange('nr:l', 0, -1), ['a', 'b', 'c']);
  check('sAdd', await client.sAdd('nr:s', ['x', 'y']), 2);
  check('sMembers', [...await client.sMembers('nr:s')].sort(), ['x', 'y']);
  check('zAdd', await client.zAdd('nr:z', [{ score: 1.5, value: 'm' }]), 1);
  check('zScore', await client.zScore('nr:z', 'm'), 1.5);
  check('zRangeWithScores', (await client.zRangeWithScores('nr:z', 0, -1)).map(plain),
    [{ value: 'm', score: 1.5 }]);
  check('xAdd', await client.xAdd('nr:x', '1-1', { f: 'v' }), '1-1');
  const read = await client.xRead({ key: 'nr:x', id: '0' });
  check('xRead', read[0].name, 'nr:x');
  check('eval', await client.eval('return {KEYS[1], ARGV[1]}',
    { keys: ['nr:k'], arguments: ['x'] }), ['nr:k', 'x']);
  check('info', (await client.info()).includes('redis_mode:standalone'), true);
  check('dbSize', (await client.dbSize()) > 0, true);
}

async function pipelines(client) {
  const waiting = [];
  for (let i = 0; i < 1000; i += 1) {
    waiting.push(client.set(`nr:p:${i}`, `${i}`), client.get(`nr:p:${i}`));
  }
  const got = await Promise.all(waiting);
  got.forEach((value, i) => check('pipeline', value, i % 2 === 0 ? 'OK' : `${(i - 1) / 2}`));
  const multi = client.multi().set('nr:m', '1').get('nr:m').mGet(['nr:p:1', 'nr:p:2', 'nr:absent']);
  check('execAsPipeline', await multi.execAsPipeline(), ['OK', '1', ['1', '2', null]]);
  check('exec', await client.multi().set('nr:m', '1').incr('nr:m').exec(), ['OK', 2]);
  check('blPop', await client.blPop('nr:none', 1), null);
}

async function errors(client) {
  await client.set('nr:str', 'x');
  await checkRejects('wrong type', client.lPush('nr:str', 'y'), /^WRONGTYPE/);
  await checkRejects('unknown', client.sendCommand(['FOO']), /unknown command/);
  check('after errors', await client.ping(), 'PONG');
}

async function messages(client) {
  const subscriber = client.duplicate();
  await subscriber.connect();
  const [plain, patterns, shards] = [inbox(), inbox(), inbox()];
  await subscriber.subscribe(['nr:ch:1', 'nr:ch:2'], plain.put);
  await subscriber.pSubscribe('nr:ch:*', patterns.put);
  await subscriber.sSubscribe('nr:shard', shards.put);
  check('publish', (await client.publish('nr:ch:2', 'hello')) >= 1, true);
  check('message', await plain.next(), ['hello', 'nr:ch:2']);
  check('pmessage', await patterns.next(), ['hello', 'nr:ch:2']);
  await client.sPublish('nr:shard', 's');
  check('smessage', await shards.next(), ['s', 'nr:shard']);
  check('ping', (await subscriber.ping()).toUpperCase(), 'PONG');
  await subscriber.unsubscribe();
  await subscriber.pUnsubscribe();
  await subscriber.sUnsubscribe();
  check('after it', await subscriber.get('nr:absent'), null);
  await subscriber.close();
}

async function one(options) {
  const client = createClient({ socket: { port, host: '127.0.0.1', reconnectStrategy: false }, ...options });
  client.on('error', (error) => { throw error; });
  await client.connect();
  await client.sendCommand(['FLUSHALL']);
  await commands(client);
  await pipelines(client);
  await errors(client);
  await messages(client);
  await client.close();
}

run('node-redis', async () => {
  await one({});
  await one({ RESP: 2 });
  await one({ RESP: 3, name: 'named' });
});
