"""What the JSON lines of benches/gpu.sh say: python ratios.py FOLDER

Medians over the rounds, per workload and mode, beside stepgraph's traced step; then each goal with its figure.
"""
import glob, json, statistics, sys

GOALS = {"bandwidth": 0.9, "host_us": 10.0, "eager": 5.0}


def lines(folder):
    for name in sorted(glob.glob(folder + "/*.jsonl")):
        for text in open(name):
            if text.startswith("{"):
                yield json.loads(text)


def main(folder):
    found, ceilings, latency = {}, [], {}
    for o in lines(folder):
        if "workload" in o:
            found.setdefault((o["workload"], o["peer"], o["mode"]), []).append(o)
        elif o.get("section") == "ceilings" and "gb_s" in o:
            ceilings.append((o["bytes"], o["gb_s"]))
        elif o.get("section") == "latency" and "nodes" in o:
            latency.setdefault(o["nodes"], []).append(o["host_us"])
        if o.get("ok") is False:
            print(f"FAILED {o['section']} {o['name']}: {str(o['error'])[:200]}")

    def figure(workload, peer, mode, key):
        values = [o[key] for o in found.get((workload, peer, mode), []) if key in o]
        return statistics.median(values) if values else None

    workloads = list(dict.fromkeys(w for w, _, _ in found))
    for w in workloads:
        ours = figure(w, "stepgraph", "traced", "median_us")
        print(f"\n{w}")
        rows = [(p, m) for x, p, m in found if x == w]
        for p, m in sorted(rows, key=lambda r: figure(w, *r, "median_us") or 1e18):
            us = figure(w, p, m, "median_us")
            if us is None:
                print(f"  {p + ' ' + m:26} ERROR {found[w, p, m][0].get('error', '')[:120]}")
                continue
            ratio = f"{us / ours:6.2f} of stepgraph traced" if ours else ""
            rest = " ".join(f"{k} {figure(w, p, m, k)}" for k in ("host_us", "device_us", "gb_s", "gflop_s", "loss20")
                            if figure(w, p, m, k) is not None)
            print(f"  {p + ' ' + m:26} {us:>11.2f} us {ratio}  {rest}")

    print("\nGoals")

    def goal(name, value, met, unit=""):
        shown = "not measured" if value is None else f"{value:.3g}{unit}"
        print(f"  {'MET   ' if value is not None and met else 'MISSED' if value is not None else '-     '} {name}: {shown}")

    # Smaller copies stay in the cache.
    large = [rate for size, rate in ceilings if size >= 1 << 28]
    copy = max(large, default=None)
    print(f"  copying memory: {copy or 'not measured'} GB/s at most")
    for w in workloads:
        if w == "W1_coscos_16777216" or w.startswith("W2_mul2_16777216") or w.startswith("W6"):
            rate = figure(w, "stepgraph", "frozen", "gb_s")
            share = rate / copy if rate and copy else None
            goal(f"{w}: at least {GOALS['bandwidth']} of that", share, share and share >= GOALS["bandwidth"])
    steps = [w for w in workloads if w[:2] in ("W3", "W4", "W5")]
    for w in steps:
        host = figure(w, "stepgraph", "frozen", "host_us")
        goal(f"{w}: host time of a replay below {GOALS['host_us']} us", host, host and host < GOALS["host_us"], " us")
    for nodes, values in sorted(latency.items()):
        host = statistics.median(values)
        goal(f"a graph of {nodes} nodes: host time below {GOALS['host_us']} us", host, host < GOALS["host_us"], " us")
    for w in steps:
        ours = figure(w, "stepgraph", "traced", "median_us")
        others = [(figure(w, p, m, "median_us"), p, m) for x, p, m in found if x == w and p != "stepgraph"]
        others = [o for o in others if o[0] is not None]
        best = min(others, default=None)
        share = ours / best[0] if ours and best else None
        goal(f"{w}: at most 1 of the fastest other" + (f" ({best[1]} {best[2]})" if best else ""), share, share and share <= 1)
        eager = figure(w, "stepgraph", "eager", "median_us")
        if w[:2] in ("W3", "W4"):
            share = eager / ours if eager and ours else None
            goal(f"{w}: eager to traced at least {GOALS['eager']}", share, share and share >= GOALS["eager"])


if __name__ == "__main__":
    main(sys.argv[1])
