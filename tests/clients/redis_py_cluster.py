"""A18: redis-py's cluster client, pointed at the proxy: it finds one node that owns every slot, or
one for each announced port.

    redis_py_cluster.py PORT...
"""

import sys

from redis.cluster import RedisCluster

PORTS = [int(port) for port in sys.argv[1:]]

for protocol in (2, 3):
    client = RedisCluster(host="127.0.0.1", port=PORTS[0], protocol=protocol, decode_responses=True)
    nodes = client.get_nodes()
    assert sorted(node.port for node in nodes) == sorted(PORTS), nodes
    assert nodes[0].server_type == "primary"
    for n in range(200):
        assert client.set(f"face:{n}", n) is True
    for n in range(200):
        assert client.get(f"face:{n}") == str(n)
    assert client.mget_nonatomic([f"face:{n}" for n in range(20)]) == [str(n) for n in range(20)]
    pipe = client.pipeline()
    for n in range(50):
        pipe.incr(f"face:{n}")
    assert pipe.execute() == [n + 1 for n in range(50)]
    assert client.eval("return KEYS[1]", 1, "face:k") == "face:k"
    script = client.register_script("return ARGV[1]")
    assert script(keys=["face:k"], args=["x"]) == "x"
    assert client.hset("face:h", mapping={"a": 1, "b": 2}) in (0, 2)
    assert client.hgetall("face:h") == {"a": "1", "b": "2"}
    walked = set(client.scan_iter(match="face:*", count=500))
    assert {f"face:{n}" for n in range(200)} <= walked
    assert client.ping()
    assert client.dbsize() >= 201
    assert client.mset_nonatomic({f"face:m:{n}": n for n in range(20)})
    assert client.delete(*[f"face:m:{n}" for n in range(20)]) == 20
    assert client.delete(*[f"face:{n}" for n in range(200)]) == 200
    client.delete("face:h")
    client.close()
print("redis-py cluster: ok")
