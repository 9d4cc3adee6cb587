<?php
// phpredis through the proxy. Argument: port. Ends with code 1 at the first mismatch.
$port = (int) $argv[1];

function check(string $what, $got, $expected): void
{
    if ($got !== $expected) {
        fwrite(STDERR, "$what: got " . var_export($got, true) . ', expected ' . var_export($expected, true) . "\n");
        exit(1);
    }
}

$redis = new Redis();
check('connect', $redis->connect('127.0.0.1', $port, 5.0), true);
$redis->setOption(Redis::OPT_READ_TIMEOUT, 20);
check('select', $redis->select(0), true);
check('flushAll', $redis->flushAll(), true);
check('ping', $redis->ping('x'), 'x');
check('set', $redis->set('php:a', '1'), true);
check('get', $redis->get('php:a'), '1');
check('get absent', $redis->get('php:absent'), false);
check('incrBy', $redis->incrBy('php:a', 41), 42);

$keys = array_map(fn ($i) => "php:many:$i", range(0, 49));
check('mset', $redis->mset(array_combine($keys, $keys)), true);
check('mget', $redis->mget([...$keys, 'php:absent']), [...$keys, false]);
check('exists', $redis->exists($keys), 50);
check('unlink', $redis->unlink(array_slice($keys, 0, 10)), 10);
check('del', $redis->del($keys), 40);

check('hMSet', $redis->hMSet('php:h', ['a' => '1', 'b' => '2']), true);
check('hGetAll', $redis->hGetAll('php:h'), ['a' => '1', 'b' => '2']);
check('hMGet', $redis->hMGet('php:h', ['a', 'x']), ['a' => '1', 'x' => false]);
check('rPush', $redis->rPush('php:l', 'a', 'b', 'c'), 3);
check('lRange', $redis->lRange('php:l', 0, -1), ['a', 'b', 'c']);
check('sAdd', $redis->sAdd('php:s', 'x'), 1);
check('sMembers', $redis->sMembers('php:s'), ['x']);
check('zAdd', $redis->zAdd('php:z', 1.5, 'm'), 1);
check('zRange', $redis->zRange('php:z', 0, -1, true), ['m' => 1.5]);
check('eval', $redis->eval('return {KEYS[1], ARGV[1]}', ['php:k', 'x'], 1), ['php:k', 'x']);

$pipe = $redis->multi(Redis::PIPELINE);
for ($i = 0; $i < 500; $i++) {
    $pipe->set("php:p:$i", (string) $i)->get("php:p:$i");
}
$got = $pipe->mget(['php:p:1', 'php:absent'])->exec();
check('pipeline length', count($got), 1001);
check('pipeline value', $got[999], '499');
check('pipeline mget', $got[1000], ['1', false]);

$redis->set('php:str', 'x');
check('wrong type', $redis->lPush('php:str', 'y'), false);
check('its error', str_starts_with((string) $redis->getLastError(), 'WRONGTYPE'), true);
$redis->clearLastError();
check('unknown', $redis->rawCommand('FOO'), false);
check('its error', str_contains((string) $redis->getLastError(), 'unknown command'), true);
$binary = implode('', array_map('chr', range(0, 255)));
check('binary set', $redis->set("php:\r\n\0", $binary), true);
check('binary get', $redis->get("php:\r\n\0"), $binary);
check('info', $redis->info()['redis_mode'], 'standalone');
check('client name', $redis->client('setname', 'php'), true);
check('client name', $redis->client('getname'), 'php');
check('dbSize', $redis->dbSize() > 0, true);
check('close', $redis->close(), true);
echo 'phpredis ', phpversion('redis'), " ok\n";
