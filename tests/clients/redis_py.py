"""redis-py through the proxy. Arguments: port, major version. Ends with a traceback at the first mismatch."""

import sys

import redis

PORT, MAJOR = int(sys.argv[1]), int(sys.argv[2])


def check(what, got, expected):
    if got != expected:
        raise AssertionError(f"{what}: got {got!r}, expected {expected!r}")


def check_raises(what, kind, text, call):
    try:
        got = call()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"{what}: {error!r} lacks {text!r}") from error
        return
    raise AssertionError(f"{what}: got {got!r}, expected an error")


def strings(r):
    check("set", r.set("py:a", "1"), True)
    check("get", r.get("py:a"), "1")
    check("get absent", r.get("py:absent"), None)
    check("set nx", r.set("py:a", "2", nx=True), None)
    check("set get", r.set("py:a", "2", get=True), "1")
    check("incr", r.incr("py:a", 40), 42)
    check("incrbyfloat", r.incrbyfloat("py:f", 1.5), 1.5)
    check("setex ttl", (r.setex("py:ttl", 100, "v"), r.ttl("py:ttl")), (True, 100))
    check("append", r.append("py:s", "abc"), 3)
    check("getrange", r.getrange("py:s", 0, 1), "ab")
    check("getdel", r.getdel("py:s"), "abc")


def across_slots(r):
    keys = [f"py:many:{i}" for i in range(50)]
    check("mset", r.mset({key: key for key in keys}), True)
    check("mget", r.mget(keys + ["py:absent", keys[0]]), keys + [None, keys[0]])
    check("exists", r.exists(*keys, keys[0]), 51)
    check("touch", r.touch(*keys), 50)
    check("unlink", r.unlink(*keys[:10]), 10)
    check("delete", r.delete(*keys), 40)
    check("mget after", r.mget(keys[:3]), [None] * 3)
    # At a plain server, against which this is tried as well, no such error exists.
    try:
        check("sunion", r.sunion("py:x", "py:y"), set())
    except redis.ResponseError as error:
        check("sunion's error", "CROSSSLOT" in str(error) or "same slot" in str(error), True)


def hashes(r):
    check("hset", r.hset("py:h", mapping={"a": "1", "b": "2"}), 2)
    check("hgetall", r.hgetall("py:h"), {"a": "1", "b": "2"})
    check("hmget", r.hmget("py:h", ["a", "absent"]), ["1", None])
    check("hincrby", r.hincrby("py:h", "a", 5), 6)
    check("hkeys", r.hkeys("py:h"), ["a", "b"])
    check("hdel", r.hdel("py:h", "a", "b"), 2)
    check("hgetall empty", r.hgetall("py:h"), {})
    r.hset("py:h", mapping={str(i): str(i) for i in range(10)})
    check("hscan_iter", dict(r.hscan_iter("py:h")), {str(i): str(i) for i in range(10)})


def lists_and_sets(r):
    check("rpush", r.rpush("py:l", "a", "b", "c"), 3)
    check("lrange", r.lrange("py:l", 0, -1), ["a", "b", "c"])
    check("lpop count", r.lpop("py:l", 2), ["a", "b"])
    check("lpop", r.lpop("py:l"), "c")
    check("lpop empty", r.lpop("py:l"), None)
    check("sadd", r.sadd("py:s:{1}", "x", "y"), 2)
    check("smembers", r.smembers("py:s:{1}"), {"x", "y"})
    check("sismember", bool(r.sismember("py:s:{1}", "x")), True)
    r.sadd("py:t:{1}", "y", "z")
    check("sinter", r.sinter("py:s:{1}", "py:t:{1}"), {"y"})


def sorted_sets(r):
    check("zadd", r.zadd("py:z", {"a": 1, "b": 2.5}), 2)
    check("zscore", r.zscore("py:z", "b"), 2.5)
    check("zscore absent", r.zscore("py:z", "absent"), None)
    pairs = r.zrange("py:z", 0, -1, withscores=True)
    check("zrange withscores", [tuple(pair) for pair in pairs], [("a", 1.0), ("b", 2.5)])
    check("zrank", r.zrank("py:z", "b"), 1)
    check("zincrby", r.zincrby("py:z", 1.5, "a"), 2.5)
    check("zpopmin", "2.5" in str(r.zpopmin("py:z")), True)


def streams_and_scripts(r):
    check("xadd", r.xadd("py:x", {"f": "v"}, id="1-1"), "1-1")
    check("xrange", r.xrange("py:x"), [("1-1", {"f": "v"})])
    read = r.xread({"py:x": "0"})
    names = list(read) if isinstance(read, dict) else [name for name, _ in read]
    check("xread", names, ["py:x"])
    check("eval", r.eval("return {KEYS[1], ARGV[1]}", 1, "py:k", "x"), ["py:k", "x"])
    script = r.register_script("return redis.call('GET', KEYS[1])")
    for i in range(20):
        r.set(f"py:script:{i}", i)
        check("script", script(keys=[f"py:script:{i}"]), str(i))


def pipelines(r):
    pipe = r.pipeline(transaction=False)
    for i in range(500):
        pipe.set(f"py:p:{i}", i)
        pipe.get(f"py:p:{i}")
    pipe.mget("py:p:1", "py:p:2", "py:absent")
    pipe.delete("py:p:1", "py:p:2")
    got = pipe.execute()
    expected = [value for i in range(500) for value in (True, str(i))]
    check("pipeline", got, expected + [["1", "2", None], 2])
    pipe = r.pipeline(transaction=False)
    pipe.set("py:str", "x").lpush("py:str", "y").get("py:str")
    got = pipe.execute(raise_on_error=False)
    check("pipeline with an error", (got[0], type(got[1]), got[2]), (True, redis.ResponseError, "x"))


def errors(r):
    r.set("py:str", "x")
    check_raises("wrong type", redis.ResponseError, "WRONGTYPE", lambda: r.lpush("py:str", "x"))
    check_raises("unknown", redis.ResponseError, "unknown command", lambda: r.execute_command("FOO"))
    check_raises("arity", redis.ResponseError, "wrong number", lambda: r.execute_command("GET"))
    check("ping after errors", r.ping(), True)


def connection(r):
    check("ping", r.ping(), True)
    check("echo", r.echo("\r\n\0"), "\r\n\0")
    check("info", r.info()["redis_mode"], "standalone")
    check("info version", "redis_version" in r.info("server"), True)
    check("client_setname", r.client_setname("py"), True)
    check("client_getname", r.client_getname(), "py")
    check("client_id", r.client_id() > 0, True)
    check("config_get", "save" in r.config_get("save"), True)
    check("time", len(r.time()), 2)
    check("role", r.execute_command("ROLE")[0] in ("master", b"master"), True)
    check("dbsize", r.dbsize() >= 0, True)
    check("command_count", r.command_count() > 200, True)


def transactions(r):
    pipe = r.pipeline()
    check("transaction", pipe.set("py:m", 1).incr("py:m").get("py:m").execute(), [True, 2, "2"])
    pipe = r.pipeline()
    pipe.set("py:m", "x").lpush("py:m", "y").get("py:m")
    got = pipe.execute(raise_on_error=False)
    check("transaction with an error", (got[0], type(got[1]), got[2]), (True, redis.ResponseError, "x"))
    for i in range(100):
        check("many", r.pipeline().set("py:m", i).get("py:m").execute(), [True, str(i)])

    def double(pipe):
        value = int(pipe.get("py:m"))
        pipe.multi()
        pipe.set("py:m", 2 * value)

    r.set("py:m", 21)
    check("transaction()", r.transaction(double, "py:m"), [True])
    check("doubled", r.get("py:m"), "42")
    with r.pipeline() as pipe:
        pipe.watch("py:m")
        r.set("py:m", "other") if r.connection is None else pipe.execute_command("SET", "py:m", "other")
        pipe.multi()
        pipe.set("py:m", "mine")
        check_raises("watch", redis.WatchError, "", pipe.execute)
    check("the other's", r.get("py:m"), "other")
    with r.lock("py:lock", timeout=60):
        check("locked", r.lock("py:lock", blocking=False).acquire(), False)


def blocking(r):
    check("blpop nothing", r.blpop("py:none", timeout=1), None)
    r.rpush("py:bl", "a", "b", "c")
    check("blpop", [*r.blpop(["py:bl"], timeout=1)], ["py:bl", "a"])
    check("brpop", [*r.brpop("py:bl", timeout=1)], ["py:bl", "c"])
    check("blmove", r.blmove("py:bl", "py:bl", 1, "LEFT", "RIGHT"), "b")
    r.zadd("py:bz", {"a": 1})
    check("bzpopmin", [*r.bzpopmin("py:bz", timeout=1)], ["py:bz", "a", 1.0])
    check("xread block", bool(r.xread({"py:bx": "$"}, block=20)), False)
    check("ping after", r.ping(), True)


def next_message(p):
    for _ in range(100):
        message = p.get_message(timeout=0.1)
        if message is not None:
            return message["type"], message["channel"], message["data"]
    raise AssertionError("no message came")


def messages(r):
    p = r.pubsub()
    p.subscribe("py:ch:1", "py:ch:2")
    check("subscribe", next_message(p), ("subscribe", "py:ch:1", 1))
    check("subscribe", next_message(p), ("subscribe", "py:ch:2", 2))
    p.psubscribe("py:ch:*")
    check("psubscribe", next_message(p), ("psubscribe", "py:ch:*", 3))
    check("publish", r.publish("py:ch:2", "hello") >= 1, True)
    got = sorted([next_message(p), next_message(p)])
    check("messages", got, [("message", "py:ch:2", "hello"), ("pmessage", "py:ch:2", "hello")])
    check("pubsub_channels", sorted(r.pubsub_channels("py:ch:*")), ["py:ch:1", "py:ch:2"])
    check("pubsub_numsub", [count for _, count in r.pubsub_numsub("py:ch:1", "py:ch:3")], [1, 0])
    check("pubsub_numpat", r.pubsub_numpat(), 1)
    p.unsubscribe("py:ch:1")
    check("unsubscribe", next_message(p), ("unsubscribe", "py:ch:1", 2))
    if hasattr(p, "ssubscribe"):
        p.ssubscribe("py:shard")
        check("ssubscribe", next_message(p), ("ssubscribe", "py:shard", 1))
        r.execute_command("SPUBLISH", "py:shard", "s")
        check("smessage", next_message(p), ("smessage", "py:shard", "s"))
    p.unsubscribe()
    p.punsubscribe()
    check("unsubscribe", next_message(p)[:2], ("unsubscribe", "py:ch:2"))
    check("punsubscribe", next_message(p)[:2], ("punsubscribe", "py:ch:*"))
    p.close()


def binary():
    r = redis.Redis(port=PORT, decode_responses=False, socket_timeout=60)
    every = bytes(range(256))
    check("set", r.set(b"py:\r\n\0\xff", every), True)
    check("get", r.get(b"py:\r\n\0\xff"), every)
    check("mget", r.mget([b"py:\r\n\0\xff", b"py:none"]), [every, None])
    large = every * 40_000
    check("large set", r.set("py:large", large), True)
    check("large get", r.get("py:large") == large, True)
    check("delete", r.delete(b"py:\r\n\0\xff", "py:large"), 2)


def run_all(**options):
    r = redis.Redis(port=PORT, decode_responses=True, socket_timeout=60, **options)
    r.flushall()
    for step in (connection, strings, across_slots, hashes, lists_and_sets, sorted_sets,
                 streams_and_scripts, pipelines, errors, transactions, blocking, messages):
        try:
            step(r)
        except Exception as error:
            raise RuntimeError(f"in {step.__name__} with {options}") from error
    r.close()


check("version", int(redis.__version__.split(".")[0]), MAJOR)
run_all()
run_all(single_connection_client=True, client_name="named", db=0)
if MAJOR >= 5:
    run_all(protocol=2)
    run_all(protocol=3)
binary()
print("redis-py", redis.__version__, "ok")
