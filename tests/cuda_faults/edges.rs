//! The edges of a launch graph: each one is needed, and no more are there.

use stepgraph::{Device, Result, Tensor, Var, jit, optim};

use crate::harness::filled;
use crate::{device, turn};

type Step = fn(&Device, bool) -> Result<Vec<String>>;

/// Two layers, an optimizer; one batch has a label that does not exist. Losses, errors and parameters as text.
fn training(d: &Device, traced: bool) -> Result<Vec<String>> {
    let parameters: Vec<Var> = [(&[6, 5][..], 1), (&[5], 2), (&[5, 3], 3), (&[3], 4)]
        .iter()
        .map(|(dims, seed)| Var::new(&filled(dims, *seed, d)))
        .collect::<Result<_>>()?;
    let [w1, b1, w2, b2] = &parameters[..] else { unreachable!() };
    let mut adam = optim::Adam::new(parameters.clone(), optim::AdamConfig { lr: 0.05, ..Default::default() })?;
    let x = filled(&[7, 6], 5, d);
    let good = Tensor::from_slice(&[0i64, 1, 2, 2, 1, 0, 1], [7], d)?;
    let bad = Tensor::from_slice(&[0i64, 1, 2, 9, 1, 0, 1], [7], d)?;
    let mut step = jit::Step::new();
    let mut out = Vec::new();
    for k in 0..6 {
        let labels = if k == 3 { &bad } else { &good };
        let mut update = || {
            let h = x.matmul(&w1.get())?.add(b1.get())?.tanh()?;
            let loss = h.matmul(&w2.get())?.add(b2.get())?.cross_entropy(labels)?;
            adam.step(&loss.backward()?)?;
            Ok(loss)
        };
        if k == 3 && !traced {
            // What a step drops.
            out.push("an index".to_string());
            continue;
        }
        let loss = if traced { step.run(&mut update) } else { update() };
        let read = loss.and_then(|l| l.item::<f32>());
        out.push(read.map_or_else(|_| "an index".to_string(), |l| format!("{:08x}", l.to_bits())));
    }
    for v in parameters.iter().chain(&adam.state()) {
        out.push(v.get().to_host()?.data.to_text().join(" "));
    }
    Ok(out)
}

/// Chains that share memory in the arena: what is written late overwrites what is read early.
fn chains(d: &Device, traced: bool) -> Result<Vec<String>> {
    let w = Var::new(&filled(&[8, 8], 1, d))?;
    let mut step = jit::Step::new();
    let mut out = Vec::new();
    for _ in 0..5 {
        let update = || {
            let a = w.get().matmul(&w.get())?.softmax(1)?;
            let b = a.matmul(&w.get())?.softmax(0)?;
            let c = b.matmul(&a)?.sum(0)?;
            w.set(&w.get().sub(&c.mul(0.1)?)?.add(&b.t()?)?)?;
            Ok(c)
        };
        let c = if traced { step.run(update)? } else { update()? };
        out.push(c.to_host()?.data.to_text().join(" "));
    }
    out.push(w.get().to_host()?.data.to_text().join(" "));
    Ok(out)
}

/// The edges that no path stands for.
fn reduced(edges: &[(usize, usize)]) -> Vec<usize> {
    let path = |from: usize, to: usize, but: usize| {
        let mut stack = vec![from];
        let mut seen = Vec::new();
        while let Some(n) = stack.pop() {
            for (i, &(f, t)) in edges.iter().enumerate() {
                if f == n && i != but && !seen.contains(&t) {
                    seen.push(t);
                    stack.push(t);
                }
            }
        }
        seen.contains(&to)
    };
    (0..edges.len()).filter(|&i| !path(edges[i].0, edges[i].1, i)).collect()
}

/// Drops each edge that counts; those whose absence no order shows.
fn unnoticed(name: &str, step: Step) -> Vec<String> {
    let d = device();
    let want = step(&d, false).unwrap();
    cuda_sim::drop_edge(-1);
    assert_eq!(step(&d, true).unwrap(), want, "{name}: nothing is missing");
    let (graph, edges) = (cuda_sim::last_graph(), cuda_sim::graph_edges());
    assert_eq!(cuda_sim::edges_seen(), edges.len() as u64, "{name}: one graph was built");
    for seed in 2..10 {
        cuda_sim::set_order_seed(seed);
        assert_eq!(step(&d, true).unwrap(), want, "{name}: nothing is missing, order {seed}");
    }
    let title = |n: usize| graph[n].name.clone().unwrap_or_else(|| graph[n].kind.clone());
    let needed = reduced(&edges);
    println!("{name}: {} nodes, {} edges, {} of them needed", graph.len(), edges.len(), needed.len());
    assert!(needed.len() >= 4, "{edges:?}");
    let mut out = Vec::new();
    for i in needed {
        let (from, to) = edges[i];
        // Two kinds are there for a bad label alone, and seldom show: what takes the flag down waits for all that read it,
        // early ones too; and the labels are looked up by two kernels, of which the first has raised the flag.
        if title(to) == "stepgraph_settle" || title(from).contains("gather") {
            continue;
        }
        let shown = (1..=24).any(|seed| {
            cuda_sim::set_order_seed(seed);
            cuda_sim::drop_edge(i as i64);
            let got = step(&d, true);
            let without: Vec<_> = edges.iter().copied().filter(|&e| e != edges[i]).collect();
            assert_eq!(cuda_sim::graph_edges(), without, "the edge was dropped");
            got.map_or(true, |got| got != want)
        });
        if !shown {
            out.push(format!("{name}: {} -> {} ({from} -> {to})", title(from), title(to)));
        }
    }
    cuda_sim::drop_edge(-1);
    out
}

#[test]
fn a_missing_edge_is_seen() {
    let Some(_turn) = turn() else { return };
    let mut left = unnoticed("training", training);
    left.extend(unnoticed("chains", chains));
    assert!(left.is_empty(), "dropped, and nothing changed:\n{}", left.join("\n"));
}

/// What has nothing to do with each other may run at the same time.
#[test]
fn independent_branches_have_no_path_between_them() -> Result<()> {
    let Some(_turn) = turn() else { return Ok(()) };
    let d = &device();
    let (a, b) = (filled(&[6, 5], 1, d), filled(&[4, 9], 2, d));
    let mut step = jit::Step::new();
    for _ in 0..3 {
        let (x, y) = step.run(|| {
            // The products are outputs too: in the arena the second could take the first one's place, and would wait.
            let (x, y) = (a.matmul(&a.t()?)?, b.matmul(&b.t()?)?);
            Ok(((x.tanh()?.sum(1)?, x), (y.sin()?.sum(0)?, y)))
        })?;
        assert_eq!((x.0.dims(), y.0.dims()), (&[6][..], &[4][..]));
    }
    let (graph, edges) = (cuda_sim::last_graph(), cuda_sim::graph_edges());
    // Branches: nodes that an edge connects are of one.
    let mut branch: Vec<usize> = (0..graph.len()).collect();
    for _ in 0..graph.len() {
        for &(from, to) in &edges {
            let low = branch[from].min(branch[to]);
            (branch[from], branch[to]) = (low, low);
        }
    }
    branch.sort_unstable();
    branch.dedup();
    assert_eq!(branch.len(), 2, "{graph:?}");
    Ok(())
}
