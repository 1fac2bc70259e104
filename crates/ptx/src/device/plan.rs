//! Executable graphs: checked copies that can be launched repeatedly.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    by_kernel::{BY_KERNELS, Run},
    error::{Cause, Error, Stuck},
    graph::{Edge, Graph, GraphId, NodeId},
    schedule::{State, TaskId},
    stream::ContextId,
    weight::{Charge, UNIT_BYTES},
    work::{Action as ValueAction, Body, Conditional, ConditionalKind, Op, ValueOp, Work},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecId(pub(super) u64);

impl ExecId {
    /// The number in [`About::graph`](super::About::graph).
    pub fn number(self) -> u64 {
        self.0
    }
}

pub(super) struct Exec {
    pub(super) context: ContextId,
    /// The graph that was instantiated, for launches into a capture.
    pub(super) graph: Graph,
    plan: Plan,
    pub(super) flags: u64,
    /// Last task of the last launch: launches of one graph do not overlap.
    last: Option<TaskId>,
}

/// A graph's steps in the order of their nodes' creation, and an order to start them in.
#[derive(Clone, Debug)]
struct Plan {
    steps: Vec<PlanStep>,
    order: Vec<usize>,
    /// Addresses of conditions and their initial values.
    defaults: Vec<(u64, u32)>,
}

/// A conditional node, with plans of its graphs.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    condition: Conditional,
    plans: Vec<Plan>,
}

#[derive(Clone, Debug)]
struct PlanStep {
    node: NodeId,
    action: Action,
    deps: Vec<usize>,
    /// The data of the edges from `deps`.
    edges: Box<[Edge]>,
    is_leaf: bool,
    enabled: bool,
    /// Its weight, until it is dropped.
    charge: Charge,
}

const _: () = assert!(size_of::<PlanStep>() <= UNIT_BYTES);

#[derive(Clone, Debug)]
enum Action {
    Op(Op),
    Child(Plan),
    Branch(Arc<Branch>),
}

/// Why an executable graph could not be updated: `CUgraphExecUpdateResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateError {
    TopologyChanged,
    NodeTypeChanged,
    ParametersChanged,
}

/// Why an update failed, and the node of the new graph that it failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateFailure {
    pub error: UpdateError,
    pub node: Option<NodeId>,
}

impl UpdateError {
    fn at(self, node: NodeId) -> UpdateFailure {
        UpdateFailure {
            error: self,
            node: Some(node),
        }
    }
}

impl Action {
    fn new(op: &Op) -> Result<Action, Error> {
        Ok(match op {
            Op::Child(body) => Action::Child(Plan::of(body)?),
            Op::Conditional(condition) => {
                let plans = condition.bodies.iter().map(Plan::of);
                Action::Branch(Arc::new(Branch {
                    plans: plans.collect::<Result<_, _>>()?,
                    condition: condition.clone(),
                }))
            }
            op => Action::Op(op.clone()),
        })
    }

    /// Returns the step of a node inside. Running launches keep the branches that they have.
    fn find(&mut self, node: NodeId) -> Option<&mut PlanStep> {
        match self {
            Action::Op(_) => None,
            Action::Child(plan) => plan.find(node),
            Action::Branch(branch) if branch.plans.iter().any(|plan| plan.has(node)) => {
                let mut plans = Arc::make_mut(branch).plans.iter_mut();
                plans.find_map(|plan| plan.find(node))
            }
            Action::Branch(_) => None,
        }
    }

    fn has(&self, node: NodeId) -> bool {
        match self {
            Action::Op(_) => false,
            Action::Child(plan) => plan.has(node),
            Action::Branch(branch) => branch.plans.iter().any(|plan| plan.has(node)),
        }
    }
}

impl Plan {
    fn of(body: &Body) -> Result<Plan, Error> {
        match body {
            Body::Fixed(graph) => Plan::new(graph),
            Body::Open(_) => Err(Error::Unsupported("a graph that is being built".into())),
        }
    }

    fn new(graph: &Graph) -> Result<Plan, Error> {
        let index: BTreeMap<NodeId, usize> =
            graph.nodes().enumerate().map(|(i, id)| (id, i)).collect();
        let mut steps = Vec::with_capacity(index.len());
        for (id, node) in &graph.nodes {
            let action = Action::new(&node.op)?;
            steps.push(PlanStep {
                node: *id,
                action,
                deps: node
                    .deps
                    .iter()
                    .filter_map(|dep| index.get(dep).copied())
                    .collect(),
                edges: node.deps.iter().map(|dep| node.edge(*dep)).collect(),
                is_leaf: true,
                enabled: true,
                charge: node.charge.clone(),
            });
        }
        let order = sort(&mut steps)?;
        Ok(Plan {
            steps,
            order,
            defaults: graph.defaults.clone(),
        })
    }

    /// Checks that kernels may launch the graph: only kernels, copies and memsets, in child graphs,
    /// too.
    fn check_by_kernels(&self) -> Result<(), Error> {
        self.steps.iter().try_for_each(|step| match &step.action {
            Action::Op(Op::Launch(_) | Op::Copy(_) | Op::Set(_)) => Ok(()),
            Action::Child(plan) => plan.check_by_kernels(),
            _ => Err(Error::Unsupported(
                "a graph for launches by kernels that has other nodes than kernels, copies, memsets and such graphs".into(),
            )),
        })
    }

    /// Counts the tasks that a launch makes.
    fn tasks(&self) -> usize {
        let tasks = self.steps.iter().map(|step| match &step.action {
            Action::Op(Op::Batch(ops)) => ops.len() + 1,
            Action::Op(_) | Action::Branch(_) => 1,
            Action::Child(plan) => plan.tasks(),
        });
        tasks.sum::<usize>() + self.defaults.len() + 1
    }

    /// Checks that the new plan differs in operations only.
    fn check_update(&self, new: &Plan) -> Result<(), UpdateFailure> {
        if self.steps.len() != new.steps.len() {
            return Err(UpdateFailure {
                error: UpdateError::TopologyChanged,
                node: None,
            });
        }
        let nodes: Vec<NodeId> = new.steps.iter().map(|step| step.node).collect();
        for (old, new) in self.steps.iter().zip(&new.steps) {
            let at = new.node;
            match (&old.action, &new.action) {
                (Action::Op(a), Action::Op(b)) if a.kind() == b.kind() => {}
                (Action::Child(a), Action::Child(b)) => a.check_update(b)?,
                (Action::Branch(a), Action::Branch(b)) => a.check_update(b, new.node)?,
                _ => return Err(UpdateError::NodeTypeChanged.at(new.node)),
            }
            if old.deps != new.deps {
                // The driver names the node at which the differing edge begins.
                let (a, b) = (&old.deps, &new.deps);
                let differs = a.iter().find(|dep| !b.contains(dep));
                let differs = differs.or_else(|| b.iter().find(|dep| !a.contains(dep)));
                let node = differs.map_or(at, |dep| nodes[*dep]);
                return Err(UpdateError::TopologyChanged.at(node));
            }
            if old.edges != new.edges {
                return Err(UpdateError::TopologyChanged.at(at));
            }
        }
        Ok(())
    }

    /// Takes over the new plan's operations; nodes keep their names and whether they are enabled.
    fn update(&mut self, new: Plan) {
        self.defaults = new.defaults;
        for (old, new) in self.steps.iter_mut().zip(new.steps) {
            match (&mut old.action, new.action) {
                (Action::Child(old), Action::Child(new)) => old.update(new),
                (Action::Branch(old), Action::Branch(new)) => {
                    Arc::make_mut(old).update(Arc::unwrap_or_clone(new));
                }
                (old, new) => *old = new,
            }
        }
    }

    /// Returns the step of a node of this graph or of one inside it.
    fn step(&mut self, node: NodeId) -> Result<&mut PlanStep, Error> {
        self.find(node).ok_or(Error::InvalidHandle {
            kind: "node of the instantiated graph",
            id: node.0,
        })
    }

    fn find(&mut self, node: NodeId) -> Option<&mut PlanStep> {
        if let Some(at) = self.steps.iter().position(|step| step.node == node) {
            return self.steps.get_mut(at);
        }
        let mut inside = self.steps.iter_mut();
        inside.find_map(|step| step.action.find(node))
    }

    fn has(&self, node: NodeId) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| step.node == node || step.action.has(node))
    }
}

impl Branch {
    /// Whether the condition is checked again after its graph has run.
    pub(super) fn repeats(&self) -> bool {
        self.condition.kind == ConditionalKind::While
    }

    fn check_update(&self, new: &Branch, node: NodeId) -> Result<(), UpdateFailure> {
        let (a, b) = (&self.condition, &new.condition);
        // Each graph has its own handle, which its kernels set.
        if (a.kind, a.bodies.len()) != (b.kind, b.bodies.len()) {
            return Err(UpdateError::ParametersChanged.at(node));
        }
        let mut plans = self.plans.iter().zip(&new.plans);
        plans.try_for_each(|(old, new)| old.check_update(new))
    }

    /// Takes over the new condition and the operations of the new bodies.
    fn update(&mut self, new: Branch) {
        self.condition = new.condition;
        for (old, new) in self.plans.iter_mut().zip(new.plans) {
            old.update(new);
        }
    }
}

/// Returns an order in which each step comes after its dependencies (Kahn's algorithm); fails on a
/// cycle.
fn sort(steps: &mut [PlanStep]) -> Result<Vec<usize>, Error> {
    let mut dependents = vec![Vec::new(); steps.len()];
    let mut waits: Vec<usize> = steps.iter().map(|step| step.deps.len()).collect();
    for (index, step) in steps.iter().enumerate() {
        for dep in &step.deps {
            dependents[*dep].push(index);
        }
    }
    let mut order: Vec<usize> = (0..steps.len()).filter(|i| waits[*i] == 0).collect();
    let mut at = 0;
    while let Some(index) = order.get(at).copied() {
        at += 1;
        steps[index].is_leaf = dependents[index].is_empty();
        for dependent in &dependents[index] {
            waits[*dependent] -= 1;
            if waits[*dependent] == 0 {
                order.push(*dependent);
            }
        }
    }
    if order.len() == steps.len() {
        Ok(order)
    } else {
        Err(Error::InvalidValue("the graph has a cycle".into()))
    }
}

impl State {
    pub(super) fn exec(&self, id: ExecId) -> Result<&Exec, Error> {
        let exec = self.execs.get(&id).ok_or_else(|| no_exec(id))?;
        self.context(exec.context)?;
        Ok(exec)
    }

    fn exec_mut(&mut self, id: ExecId) -> Result<&mut Exec, Error> {
        self.exec(id)?;
        self.execs.get_mut(&id).ok_or_else(|| no_exec(id))
    }

    pub(super) fn instantiate(
        &mut self,
        context: ContextId,
        graph: GraphId,
        flags: u64,
    ) -> Result<ExecId, Error> {
        self.context(context)?;
        let graph = self.fixed_graph(graph, 2)?;
        let plan = Plan::new(&graph)?;
        let by_kernels = flags & BY_KERNELS != 0;
        if by_kernels {
            plan.check_by_kernels()?;
        }
        let id = ExecId(self.fresh());
        if by_kernels {
            self.launchable.insert(id.handle());
        }
        let exec = Exec {
            context,
            graph,
            plan,
            flags,
            last: None,
        };
        self.execs.insert(id, exec);
        Ok(id)
    }

    /// Destroys an executable graph. A running launch goes on.
    pub(super) fn destroy_exec(&mut self, id: ExecId) -> Result<(), Error> {
        self.launchable.remove(id.handle());
        self.execs
            .remove(&id)
            .map(|_| ())
            .ok_or_else(|| no_exec(id))
    }

    pub(super) fn start_exec(
        &mut self,
        place: (ContextId, i32),
        deps: Vec<TaskId>,
        id: ExecId,
    ) -> Result<TaskId, Error> {
        self.launchable.began(id.handle());
        let task = self.start_execution(place, deps, id, None);
        if task.is_err() {
            self.launchable.ended(id.handle());
        }
        task
    }

    /// Starts a graph; `around` is the end of the execution whose kernel launched it.
    pub(super) fn start_execution(
        &mut self,
        place: (ContextId, i32),
        mut deps: Vec<TaskId>,
        id: ExecId,
        around: Option<TaskId>,
    ) -> Result<TaskId, Error> {
        deps.extend(self.exec(id)?.last);
        let run = self.new_run(id, 0);
        let last = self.start_nodes(place, &deps, id, run.clone())?;
        let task = match run {
            Some(run) => self.add_end(&run, place, last, around),
            None => last,
        };
        if let Some(exec) = self.execs.get_mut(&id) {
            exec.last = Some(task);
        }
        Ok(task)
    }

    /// Starts the nodes of a graph. Returns the task that follows them.
    pub(super) fn start_nodes(
        &mut self,
        (context, priority): (ContextId, i32),
        deps: &[TaskId],
        id: ExecId,
        run: Option<Arc<Run>>,
    ) -> Result<TaskId, Error> {
        let exec = self.exec(id)?;
        self.check_room(exec.plan.tasks())?;
        // Removed from the map while its tasks are made, because making them needs the rest of the
        // state.
        let exec = self.execs.remove(&id).ok_or_else(|| no_exec(id))?;
        self.activity.now.graph = id.0;
        let outer = std::mem::replace(&mut self.run_now, run);
        let task = self.start_plan(context, priority, deps, &exec.plan);
        self.run_now = outer;
        (self.activity.now.graph, self.activity.now.node) = (0, 0);
        self.execs.insert(id, exec);
        task
    }

    fn start_plan(
        &mut self,
        context: ContextId,
        priority: i32,
        deps: &[TaskId],
        plan: &Plan,
    ) -> Result<TaskId, Error> {
        let deps = self.start_defaults(context, priority, deps, plan);
        let deps = &deps[..];
        let mut tasks: Vec<Option<TaskId>> = vec![None; plan.steps.len()];
        let mut leaves = deps.to_vec();
        for index in &plan.order {
            let step = &plan.steps[*index];
            let mut deps: Vec<TaskId> = if step.deps.is_empty() {
                deps.to_vec()
            } else {
                step.deps.iter().filter_map(|dep| tasks[*dep]).collect()
            };
            // Steps already done are left out, because long lists of dependencies are slow.
            deps.retain(|task| self.is_live(*task));
            self.activity.now.node = step.node.0;
            let task = match &step.action {
                _ if !step.enabled => self.start(context, priority, deps, &Op::Empty)?,
                Action::Op(op) => self.start(context, priority, deps, op)?,
                Action::Child(plan) => self.start_plan(context, priority, &deps, plan)?,
                Action::Branch(branch) => {
                    let work = Work::Branch {
                        branch: branch.clone(),
                        ran: false,
                        run: self.run_now.clone(),
                    };
                    self.add(Some(context), priority, &deps, work)
                }
            };
            tasks[*index] = Some(task);
            if step.is_leaf {
                leaves.push(task);
            }
        }
        leaves.retain(|task| self.is_live(*task));
        Ok(self.add(Some(context), priority, &leaves, Work::Nothing))
    }

    /// Sets a graph's conditions to their initial values. Returns the tasks that its nodes depend
    /// on.
    fn start_defaults(
        &mut self,
        context: ContextId,
        priority: i32,
        deps: &[TaskId],
        plan: &Plan,
    ) -> Vec<TaskId> {
        let mut deps = deps.to_vec();
        for (word, value) in &plan.defaults {
            let set = Work::Value(ValueOp {
                address: *word,
                value: u64::from(*value),
                wide: false,
                action: ValueAction::Write,
            });
            deps = vec![self.add(Some(context), priority, &deps, set)];
        }
        deps
    }

    /// Starts the graph that the condition chooses now. Returns the task that ends it; `None` if no
    /// graph is to run.
    pub(super) fn start_branch(
        &mut self,
        context: ContextId,
        priority: i32,
        branch: &Branch,
    ) -> Result<Option<TaskId>, Stuck> {
        let mut word = [0; 4];
        let Branch { condition, plans } = branch;
        let read = self.memory.read(condition.word, &mut word);
        read.map_err(|error| Stuck {
            cause: Cause::IllegalAddress,
            message: error.to_string(),
        })?;
        let chosen = condition.chosen(u32::from_le_bytes(word));
        let Some(plan) = chosen.and_then(|index| plans.get(index)) else {
            return Ok(None);
        };
        let started = self
            .check_room(plan.tasks())
            .and_then(|()| self.start_plan(context, priority, &[], plan));
        started.map(Some).map_err(|error| Stuck {
            cause: Cause::LaunchFailed,
            message: format!("a graph of a conditional node: {error}"),
        })
    }

    pub(super) fn update_exec(
        &mut self,
        id: ExecId,
        graph: GraphId,
    ) -> Result<Result<(), UpdateFailure>, Error> {
        let graph = self.fixed_graph(graph, 2)?;
        let plan = Plan::new(&graph)?;
        let exec = self.exec_mut(id)?;
        if let Err(error) = exec.plan.check_update(&plan) {
            return Ok(Err(error));
        }
        exec.plan.update(plan);
        let ops = graph.nodes.into_values().map(|node| node.op);
        for (node, op) in exec.graph.nodes.values_mut().zip(ops) {
            node.op = op;
            node.weigh();
        }
        Ok(Ok(()))
    }

    /// Changes the operation of an executable graph's node; running launches keep the old one.
    pub(super) fn set_exec_node(&mut self, id: ExecId, node: NodeId, op: Op) -> Result<(), Error> {
        self.check(&op)?;
        self.weight.check(2 * op.units())?;
        let action = Action::new(&op)?;
        let exec = self.exec_mut(id)?;
        let step = exec.plan.step(node)?;
        match (&step.action, &action) {
            (Action::Op(old), Action::Op(new)) if old.kind() == new.kind() => {}
            (Action::Child(old), Action::Child(new)) if old.check_update(new).is_ok() => {}
            _ => {
                return Err(Error::InvalidValue(
                    "the node is of another kind, or its child graph of another shape".into(),
                ));
            }
        }
        step.action = action;
        step.charge.raise(op.units());
        if let Some(node) = exec.graph.find_mut(node) {
            node.op = op;
            node.weigh();
        }
        Ok(())
    }

    /// Enables or disables a node. A disabled node only keeps the order. Kernels, copies and
    /// memsets can be disabled.
    pub(super) fn enable_exec_node(
        &mut self,
        id: ExecId,
        node: NodeId,
        enabled: bool,
    ) -> Result<(), Error> {
        let step = self.exec_mut(id)?.plan.step(node)?;
        if !matches!(
            step.action,
            Action::Op(Op::Launch(_) | Op::Copy(_) | Op::Set(_))
        ) {
            return Err(Error::InvalidValue(
                "only kernel, copy and memset nodes can be disabled".into(),
            ));
        }
        step.enabled = enabled;
        Ok(())
    }

    pub(super) fn exec_node_enabled(&mut self, id: ExecId, node: NodeId) -> Result<bool, Error> {
        Ok(self.exec_mut(id)?.plan.step(node)?.enabled)
    }
}

fn no_exec(id: ExecId) -> Error {
    Error::InvalidHandle {
        kind: "instantiated graph",
        id: id.0,
    }
}
