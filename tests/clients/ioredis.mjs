// ioredis through the proxy. Argument: port. NODE_MODULES says where the package is.
import { createRequire } from 'node:module';
import { check, checkRejects, inbox, plain, port, run } from './node_common.mjs';

const module = createRequire(`${process.env.NODE_MODULES}/`)('ioredis');
const Redis = module.Redis ?? module.default ?? module;

async function commands(client) {
  check('ping', await client.ping(), 'PONG');
  check('set', await client.set('io:a', '1'), 'OK');
  check('get', await client.get('io:a'), '1');
  check('get absent', await client.get('io:absent'), null);
  check('incrby', await client.incrby('io:a', 41), 42);
  const keys = Array.from({ length: 50 }, (_, i) => `io:many:${i}`);
  check('mset', await client.mset(keys.flatMap((key) => [key, key])), 'OK');
  check('mget', await client.mget([...keys, 'io:absent']), [...keys, null]);
  check('exists', await client.exists(keys), 50);
  check('unlink', await client.unlink(keys.slice(0, 10)), 10);
  check('del', await client.del(keys), 40);
  check('hset', await client.hset('io:h', { a: '1', b: '2' }), 2);
  check('hgetall', plain(await client.hgetall('io:h')), { a: '1', b: '2' });
  check('hmget', await client.hmget('io:h', 'a', 'x'), ['1', null]);
  check('rpush', await client.rpush('io:l', 'a', 'b', 'c'), 3);
  check('lrange', await client.lrange('io:l', 0, -1), ['a', 'b', 'c']);
  check('sadd', await client.sadd('io:s', 'x', 'y'), 2);
  check('smembers', [...await client.smembers('io:s')].sort(), ['x', 'y']);
  check('zadd', await client.zadd('io:z', 1.5, 'm'), 1);
  check('zscore', Number(await client.zscore('io:z', 'm')), 1.5);
  check('xadd', await client.xadd('io:x', '1-1', 'f', 'v'), '1-1');
  check('eval', await client.eval('return {KEYS[1], ARGV[1]}', 1, 'io:k', 'x'), ['io:k', 'x']);
  check('info', (await client.info()).includes('redis_mode:standalone'), true);
  client.defineCommand('look', { numberOfKeys: 1, lua: "return redis.call('GET', KEYS[1])" });
  for (let i = 0; i < 10; i += 1) {
    await client.set(`io:script:${i}`, `${i}`);
    check('script', await client.look(`io:script:${i}`), `${i}`);
  }
}

async function pipelines(client) {
  const pipeline = client.pipeline();
  for (let i = 0; i < 500; i += 1) pipeline.set(`io:p:${i}`, i).get(`io:p:${i}`);
  pipeline.mget('io:p:1', 'io:p:2', 'io:absent');
  const got = await pipeline.exec();
  got.forEach(([error]) => check('pipeline error', error, null));
  check('pipeline last', got.at(-1)[1], ['1', '2', null]);
  const multi = await client.multi().set('io:m', '1').incr('io:m').get('io:m').exec();
  check('multi', multi.map((pair) => pair[1]), ['OK', 2, '2']);
  check('blpop', await client.blpop('io:none', 1), null);
  check('pipeline get', got[999][1], '499');
  const mixed = await client.pipeline().set('io:str', 'x').lpush('io:str', 'y').get('io:str').exec();
  check('error in its place', /^WRONGTYPE/.test(mixed[1][0].message), true);
  check('after it', mixed[2][1], 'x');
}

async function errors(client) {
  await checkRejects('wrong type', client.lpush('io:str', 'y'), /^WRONGTYPE/);
  await checkRejects('unknown', client.call('FOO'), /unknown command/);
  check('after errors', await client.ping(), 'PONG');
}

async function messages(client, options) {
  const subscriber = new Redis({ port, host: '127.0.0.1', retryStrategy: null, ...options });
  const [plain, patterns] = [inbox(), inbox()];
  subscriber.on('message', plain.put);
  subscriber.on('pmessage', patterns.put);
  check('subscribe', await subscriber.subscribe('io:ch:1', 'io:ch:2'), 2);
  check('psubscribe', await subscriber.psubscribe('io:ch:*'), 3);
  check('publish', (await client.publish('io:ch:2', 'hello')) >= 1, true);
  check('message', await plain.next(), ['io:ch:2', 'hello']);
  check('pmessage', await patterns.next(), ['io:ch:*', 'io:ch:2', 'hello']);
  check('unsubscribe', await subscriber.unsubscribe('io:ch:1'), 2);
  check('unsubscribe last', await subscriber.unsubscribe('io:ch:2'), 1);
  check('punsubscribe', await subscriber.punsubscribe(), 0);
  check('after it', await subscriber.get('io:absent'), null);
  subscriber.disconnect();
}

async function one(options) {
  const client = new Redis({ port, host: '127.0.0.1', retryStrategy: null, lazyConnect: true, ...options });
  await client.connect();
  await client.flushall();
  await commands(client);
  await pipelines(client);
  await errors(client);
  await messages(client, options);
  check('quit', await client.quit(), 'OK');
}

run('ioredis', async () => {
  await one({});
  await one({ protocol: 2 });
  await one({ protocol: 3, connectionName: 'named' });
});
