//! The choice of GPUs for a claim.
//!
//! GPUs of one model lie in groups of four kinds. Each kind has, for each model, an ordered set of
//! (free GPUs, group): the groups that have enough GPUs are found without a look at GPUs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
};

use outboard_datacenter::{
    GPU_MILLI,
    fgd::{Need, fragment},
};

use crate::{
    limits,
    link::{self, LinkFacts, LinkNeed},
    record::{Fit, Same},
};

const KINDS: [Same; 4] = [Same::Box, Same::Nvlink, Same::Bridge, Same::Proxy];

/// Place of a GPU: its model, and the names of its groups, which hold for all boxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) model: String,
    /// In the order of [`KINDS`].
    pub(crate) groups: [String; 4],
}

impl Place {
    /// Returns the name of a group.
    pub(crate) fn group(&self, same: Same) -> &str {
        &self.groups[at(same)]
    }
}

/// Wish of a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub(crate) gpus: usize,
    pub(crate) model: Option<&'a str>,
    pub(crate) same: Option<Same>,
    pub(crate) fit: Fit,
    /// Boxes that one program can use, at most.
    pub(crate) boxes_max: usize,
    /// Networks that are good enough.
    pub(crate) links: &'a [LinkNeed],
}

#[derive(Default)]
pub(crate) struct Placement {
    models: Vec<Model>,
    /// Groups of each GPU, and its model.
    gpus: Vec<Option<(usize, [usize; 4])>>,
    mix: Mix,
}

/// Claims that are known, by the kind of group that they want and the number of GPUs.
#[derive(Default)]
struct Mix {
    counts: BTreeMap<(Option<usize>, usize), u32>,
    claims: u32,
}

/// Fragment of a group of each kind, by its free GPUs.
type Fragments = [Vec<f64>; 4];

impl Mix {
    /// Measures groups of 0 to `most` free GPUs. A claim for GPUs of any groups wastes none.
    fn fragments(&self, most: usize) -> Fragments {
        let whole = vec![GPU_MILLI; most];
        let of = |kind: usize, free: usize| {
            let wanted = self
                .counts
                .iter()
                .filter(|((same, _), _)| *same == Some(kind));
            fragment(wanted.map(|((_, gpus), count)| {
                let need = Need {
                    gpus: u32::try_from(*gpus).unwrap_or(u32::MAX),
                    gpu_milli: GPU_MILLI,
                };
                let share = f64::from(*count) / f64::from(self.claims.max(1));
                (share, need.lost(&whole[..free]))
            }))
        };
        std::array::from_fn(|kind| (0..=most).map(|free| of(kind, free)).collect())
    }
}

/// GPUs of one model.
struct Model {
    name: String,
    words: Vec<String>,
    present: usize,
    kinds: [Kind; 4],
}

#[derive(Default)]
struct Kind {
    names: HashMap<String, usize>,
    groups: Vec<Group>,
    /// Free GPUs and number of each group that has some.
    by_free: BTreeSet<(usize, usize)>,
    /// Groups that have free GPUs, by number.
    with_free: BTreeSet<usize>,
    /// For each number of GPUs, free or not, the groups that have as many.
    by_present: BTreeMap<usize, usize>,
}

#[derive(Default)]
struct Group {
    present: usize,
    /// Network of its box.
    link: Option<LinkFacts>,
    free: BTreeSet<usize>,
}

impl Placement {
    /// Adds a GPU that is not free: `gpu` is the caller's number of it, `link` its network. If the
    /// network of a box changes, all its GPUs are removed and added.
    pub(crate) fn add(&mut self, gpu: usize, place: &Place, link: Option<LinkFacts>) {
        let found = self.models.iter().position(|m| m.name == place.model);
        let model = found.unwrap_or_else(|| {
            self.models.push(Model {
                name: place.model.clone(),
                words: words(&place.model),
                present: 0,
                kinds: Default::default(),
            });
            self.models.len() - 1
        });
        let of = &mut self.models[model];
        of.present += 1;
        let mut groups = [0; 4];
        for ((kind, name), group) in of.kinds.iter_mut().zip(&place.groups).zip(&mut groups) {
            let next = kind.groups.len();
            *group = *kind.names.entry(name.clone()).or_insert(next);
            if *group == next {
                kind.groups.push(Group::default());
            }
            kind.set_present(*group, kind.groups[*group].present + 1);
            kind.groups[*group].link = link;
        }
        if self.gpus.len() <= gpu {
            self.gpus.resize(gpu + 1, None);
        }
        self.gpus[gpu] = Some((model, groups));
    }

    /// Removes a GPU, which is gone or has moved.
    pub(crate) fn remove(&mut self, gpu: usize) {
        self.take(gpu);
        let Some((model, groups)) = self.gpus.get_mut(gpu).and_then(Option::take) else {
            return;
        };
        let of = &mut self.models[model];
        of.present -= 1;
        for (kind, group) in of.kinds.iter_mut().zip(groups) {
            kind.set_present(group, kind.groups[group].present - 1);
        }
    }

    /// Makes a GPU free.
    pub(crate) fn put(&mut self, gpu: usize) {
        self.change(gpu, true);
    }

    /// Makes a GPU one that is not free.
    pub(crate) fn take(&mut self, gpu: usize) {
        self.change(gpu, false);
    }

    fn change(&mut self, gpu: usize, is_free: bool) {
        let Some(&Some((model, groups))) = self.gpus.get(gpu) else {
            return;
        };
        for (kind, number) in self.models[model].kinds.iter_mut().zip(groups) {
            let free = &mut kind.groups[number].free;
            let before = free.len();
            match is_free {
                true => free.insert(gpu),
                false => free.remove(&gpu),
            };
            let after = free.len();
            kind.by_free.remove(&(before, number));
            if after > 0 {
                kind.by_free.insert((after, number));
                kind.with_free.insert(number);
            } else {
                kind.with_free.remove(&number);
            }
        }
    }

    /// Returns the most GPUs that a claim of this kind could ever get, whoever has them now.
    pub(crate) fn most(&self, wish: &Wish<'_>) -> usize {
        let of = |model: &Model| match wish.same {
            None => model.kinds[0].largest(wish).take(wish.boxes_max).sum(),
            Some(same) => model.kinds[at(same)].largest(wish).next().unwrap_or(0),
        };
        self.matching(wish).map(of).max().unwrap_or(0)
    }

    /// Chooses free GPUs, all of one model, or none.
    pub(crate) fn choose(&self, wish: &Wish<'_>) -> Option<Vec<usize>> {
        self.matching(wish).find_map(|model| match wish.fit {
            Fit::Fgd => self
                .least_fragmenting(model, wish)
                .or_else(|| model.choose(wish)),
            _ => model.choose(wish),
        })
    }

    /// Notes a claim that got GPUs, for those that choose by what is left for others.
    pub(crate) fn note(&mut self, same: Option<Same>, gpus: usize) {
        *self.mix.counts.entry((same.map(at), gpus)).or_default() += 1;
        self.mix.claims += 1;
    }

    pub(crate) fn forget(&mut self, same: Option<Same>, gpus: usize) {
        let key = (same.map(at), gpus);
        if let Some(count) = self.mix.counts.get_mut(&key) {
            *count -= 1;
            self.mix.claims -= 1;
            if *count == 0 {
                self.mix.counts.remove(&key);
            }
        }
    }

    /// Returns the fragments of all groups (FGD), in thousandths of a GPU: what a claim like those
    /// that are known cannot use of the free GPUs, in the mean.
    pub(crate) fn fragmented_milli(&self) -> u64 {
        let mut sum = 0.0;
        for model in &self.models {
            let most = model.kinds.iter();
            let most = most.filter_map(|kind| kind.by_free.last()).map(|it| it.0);
            let fragments = self.mix.fragments(most.max().unwrap_or(0));
            for (kind, of) in model.kinds.iter().zip(&fragments) {
                sum += kind.by_free.iter().map(|(free, _)| of[*free]).sum::<f64>();
            }
        }
        sum.round() as u64
    }

    /// Chooses GPUs of one group so that the fragments of all their groups grow least (FGD); of
    /// equals those of the fullest group. Of groups with equally many free GPUs the first few are
    /// looked at.
    fn least_fragmenting(&self, model: &Model, wish: &Wish<'_>) -> Option<Vec<usize>> {
        let kind = &model.kinds[wish.same.map_or(0, at)];
        let most = model.kinds[0].by_free.last().map_or(0, |(free, _)| *free);
        let fragments = self.mix.fragments(most);
        let mut best: Option<(f64, Vec<usize>)> = None;
        let (mut free, mut looks) = (0, 0);
        let enough = kind.by_free.range((wish.gpus, 0)..);
        for &(count, group) in enough.filter(|(_, group)| kind.meets(*group, wish)) {
            looks = if count == free { looks + 1 } else { 0 };
            free = count;
            if looks >= limits::FGD_LOOKS_MAX {
                continue;
            }
            let (grows_by, gpus) =
                self.pick(model, &kind.groups[group].free, wish.gpus, &fragments);
            // Sums of shares in another order differ in their last digits.
            if best
                .as_ref()
                .is_none_or(|(least, _)| grows_by < least - 1e-6)
            {
                best = Some((grows_by, gpus));
            }
        }
        best.map(|(_, gpus)| gpus)
    }

    /// Picks GPUs one by one, each where the fragments grow least.
    fn pick(
        &self,
        model: &Model,
        free: &BTreeSet<usize>,
        count: usize,
        fragments: &Fragments,
    ) -> (f64, Vec<usize>) {
        let mut left: Vec<(usize, [usize; 4])> = free
            .iter()
            .filter_map(|gpu| Some((*gpu, self.gpus.get(*gpu)?.as_ref()?.1)))
            .collect();
        // GPUs that were picked of each group.
        let mut taken: HashMap<(usize, usize), usize> = HashMap::new();
        let (mut grown, mut picked) = (0.0, Vec::new());
        while picked.len() < count {
            let grows_by = |groups: &[usize; 4]| -> f64 {
                let of = |(kind, group): (usize, &usize)| {
                    let all = model.kinds[kind].groups[*group].free.len();
                    let now = all - taken.get(&(kind, *group)).copied().unwrap_or(0);
                    fragments[kind][now - 1] - fragments[kind][now]
                };
                groups.iter().enumerate().map(of).sum()
            };
            let steps = left.iter().map(|(_, groups)| grows_by(groups)).enumerate();
            let least = steps.reduce(|a, b| if b.1 < a.1 - 1e-6 { b } else { a });
            let Some((number, by)) = least else {
                break;
            };
            let (gpu, groups) = left.remove(number);
            for (kind, group) in groups.into_iter().enumerate() {
                *taken.entry((kind, group)).or_default() += 1;
            }
            grown += by;
            picked.push(gpu);
        }
        (grown, picked)
    }

    /// Returns whether GPUs of a model are meant.
    pub(crate) fn is_of_model(&self, model: &str, wish: &Wish<'_>) -> bool {
        self.matching(wish).any(|it| it.name == model)
    }

    fn matching<'a>(&'a self, wish: &'a Wish<'_>) -> impl Iterator<Item = &'a Model> {
        let asked = wish.model.map(words);
        self.models.iter().filter(move |model| {
            let is_meant = |asked: &Vec<String>| has_words(&model.words, asked);
            model.present > 0 && asked.as_ref().is_none_or(is_meant)
        })
    }
}

/// Returns the words of a model's name: letters and digits, in small letters.
pub(crate) fn words(name: &str) -> Vec<String> {
    let words = name.split(|char: char| !char.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Returns whether a name has these whole words in a row: `A10` is no word of `A100`.
pub(crate) fn has_words(name: &[String], asked: &[String]) -> bool {
    !asked.is_empty() && name.windows(asked.len()).any(|part| part == asked)
}

fn at(same: Same) -> usize {
    KINDS.iter().position(|kind| *kind == same).unwrap_or(0)
}

impl Model {
    fn choose(&self, wish: &Wish<'_>) -> Option<Vec<usize>> {
        if let Some(same) = wish.same {
            let kind = &self.kinds[at(same)];
            return kind.group(wish, wish.fit).map(|g| kind.some(g, wish.gpus));
        }
        let chosen = match wish.fit {
            Fit::Best | Fit::Fgd => None,
            Fit::First => self.first(wish),
            Fit::Spread => self.spread(wish),
        };
        chosen.or_else(|| self.best(wish))
    }

    /// The tightest NVLink domain, else the tightest box, else the fewest boxes.
    fn best(&self, wish: &Wish<'_>) -> Option<Vec<usize>> {
        for kind in [&self.kinds[at(Same::Nvlink)], &self.kinds[0]] {
            if let Some(group) = kind.group(wish, Fit::Best) {
                return Some(kind.some(group, wish.gpus));
            }
        }
        let boxes = &self.kinds[0];
        let mut chosen = Vec::new();
        let fullest = boxes.by_free.iter().rev();
        let fullest = fullest.filter(|(_, number)| boxes.meets(*number, wish));
        for (used, &(free, number)) in fullest.enumerate() {
            let left = wish.gpus - chosen.len();
            if used == wish.boxes_max {
                return None;
            }
            if free >= left {
                // The last box is the tightest one for the rest. All before it have at least as
                // many free GPUs as `number`, and a tightest that is one of them equals it.
                let mut fitting = boxes.by_free.range((left, 0)..=(free, number));
                let tightest = fitting.find(|(_, number)| boxes.meets(*number, wish));
                chosen.extend(boxes.some(tightest.map_or(number, |(_, it)| *it), left));
                return Some(chosen);
            }
            chosen.extend(boxes.some(number, free));
        }
        None
    }

    /// GPUs of the boxes that joined first, if these are few enough.
    fn first(&self, wish: &Wish<'_>) -> Option<Vec<usize>> {
        let boxes = &self.kinds[0];
        let free = boxes.with_free.iter();
        let free = free.filter(|number| boxes.meets(**number, wish));
        let free = free.take(wish.boxes_max);
        let gpus = free.flat_map(|number| boxes.groups[*number].free.iter().copied());
        let chosen: Vec<usize> = gpus.take(wish.gpus).collect();
        (chosen.len() == wish.gpus).then_some(chosen)
    }

    /// One GPU of each of the emptiest boxes, in turn.
    fn spread(&self, wish: &Wish<'_>) -> Option<Vec<usize>> {
        let boxes = &self.kinds[0];
        let emptiest = boxes.by_free.iter().rev();
        let emptiest = emptiest.filter(|(_, number)| boxes.meets(*number, wish));
        let mut free: Vec<_> = emptiest
            .take(wish.boxes_max.min(wish.gpus))
            .map(|(_, number)| boxes.groups[*number].free.iter())
            .collect();
        let mut chosen = Vec::new();
        while chosen.len() < wish.gpus {
            let before = chosen.len();
            let turn = free.iter_mut().filter_map(Iterator::next);
            chosen.extend(turn.take(wish.gpus - before).copied());
            if chosen.len() == before {
                return None;
            }
        }
        Some(chosen)
    }
}

impl Group {
    fn meets(&self, wish: &Wish<'_>) -> bool {
        link::meets(self.link.as_ref(), wish.links)
    }
}

impl Kind {
    /// Returns whether a group is behind a network that is good enough.
    fn meets(&self, group: usize, wish: &Wish<'_>) -> bool {
        self.groups[group].meets(wish)
    }

    fn set_present(&mut self, group: usize, present: usize) {
        let before = std::mem::replace(&mut self.groups[group].present, present);
        if let Some(count) = self.by_present.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.by_present.remove(&before);
            }
        }
        if present > 0 {
            *self.by_present.entry(present).or_default() += 1;
        }
    }

    /// Returns the numbers of GPUs of all groups, the largest first. If a network is needed, each
    /// group is looked at.
    fn largest(&self, wish: &Wish<'_>) -> Box<dyn Iterator<Item = usize> + '_> {
        if wish.links.is_empty() {
            let counts = self.by_present.iter().rev();
            return Box::new(counts.flat_map(|(present, count)| iter::repeat_n(*present, *count)));
        }
        let groups = self.groups.iter().filter(|group| group.meets(wish));
        let mut present: Vec<_> = groups.map(|group| group.present).collect();
        present.sort_unstable_by(|a, b| b.cmp(a));
        Box::new(present.into_iter())
    }

    /// Returns a group that has enough free GPUs. If a network is needed, groups behind others are
    /// passed over one by one.
    fn group(&self, wish: &Wish<'_>, fit: Fit) -> Option<usize> {
        let enough = self
            .by_free
            .range((wish.gpus, 0)..)
            .map(|(_, group)| *group);
        let mut enough = enough.filter(|group| self.meets(*group, wish));
        match fit {
            Fit::Best | Fit::Fgd => enough.next(),
            Fit::Spread => enough.next_back(),
            Fit::First if !wish.links.is_empty() => enough.min(),
            Fit::First => {
                let mut free = wish.gpus;
                let mut first: Option<usize> = None;
                // One look for each number of free GPUs that some group has.
                while let Some(&(count, group)) = self.by_free.range((free, 0)..).next() {
                    first = Some(first.map_or(group, |first| first.min(group)));
                    free = count + 1;
                }
                first
            }
        }
    }

    fn some(&self, group: usize, gpus: usize) -> Vec<usize> {
        self.groups[group].free.iter().take(gpus).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSource;

    #[test]
    fn models_are_named_by_whole_words() {
        let is_of = |asked: &str, name: &str| has_words(&words(name), &words(asked));
        for (asked, name) in [
            ("a100", "NVIDIA A100-SXM4-80GB"),
            ("A100-SXM4", "NVIDIA A100-SXM4-80GB"),
            ("nvidia h200", "NVIDIA H200"),
            ("6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ] {
            assert!(is_of(asked, name), "{asked} {name}");
        }
        for (asked, name) in [
            ("A10", "NVIDIA A100-SXM4-80GB"),
            ("H20", "NVIDIA H200"),
            ("100", "NVIDIA A100"),
            ("SXM4 A100", "NVIDIA A100-SXM4"),
            ("-", "NVIDIA A100"),
        ] {
            assert!(!is_of(asked, name), "{asked} {name}");
        }
    }

    /// Boxes with so many GPUs of a model; two GPUs each share an NVLink.
    fn placement(boxes: &[(&str, usize)]) -> Placement {
        let mut placement = Placement::default();
        let mut gpu = 0;
        for (number, (model, count)) in boxes.iter().enumerate() {
            for slot in 0..*count {
                let groups = [
                    format!("{number}"),
                    format!("{number}/{}", slot / 2),
                    format!("{number}/{}", slot / 4),
                    format!("{number}/{}", slot / 8),
                ];
                placement.add(
                    gpu,
                    &Place {
                        model: (*model).into(),
                        groups,
                    },
                    Some(link(number)),
                );
                placement.put(gpu);
                gpu += 1;
            }
        }
        placement
    }

    fn wish(gpus: usize, same: Option<Same>, fit: Fit) -> Wish<'static> {
        Wish {
            gpus,
            model: None,
            same,
            fit,
            boxes_max: 8,
            links: &[],
        }
    }

    /// A box's network: the earlier it joined, the shorter the round trip.
    fn link(number: usize) -> LinkFacts {
        LinkFacts {
            rtt_ns: 1_000 * number as u64,
            bits_per_s: 1_000_000_000,
            source: LinkSource::Measured,
        }
    }

    #[test]
    fn each_fit_takes_its_group() {
        let mut placement = placement(&[("A", 8), ("A", 4), ("A", 8), ("B", 16)]);
        placement.take(0);
        let of = |p: &Placement, gpus, same, fit| p.choose(&wish(gpus, same, fit));
        let same = Some(Same::Box);
        assert_eq!(of(&placement, 4, same, Fit::Best), Some(vec![8, 9, 10, 11]));
        assert_eq!(of(&placement, 4, same, Fit::First), Some(vec![1, 2, 3, 4]));
        assert_eq!(
            of(&placement, 4, same, Fit::Spread),
            Some(vec![12, 13, 14, 15])
        );
        assert_eq!(
            of(&placement, 2, Some(Same::Nvlink), Fit::First),
            Some(vec![2, 3])
        );
        // The only free GPU of its NVLink domain leaves the pairs whole.
        assert_eq!(of(&placement, 1, None, Fit::Best), Some(vec![1]));
        assert_eq!(of(&placement, 3, Some(Same::Nvlink), Fit::Best), None);
        assert_eq!(placement.most(&wish(3, Some(Same::Nvlink), Fit::Best)), 2);
        // Over several boxes: as few as possible, the last one tight.
        let many = of(&placement, 12, None, Fit::Best).unwrap();
        assert_eq!(many, [12, 13, 14, 15, 16, 17, 18, 19, 8, 9, 10, 11]);
        assert_eq!(of(&placement, 3, None, Fit::Spread), Some(vec![12, 1, 8]));
        assert_eq!(of(&placement, 9, None, Fit::First).unwrap().len(), 9);
        // GPUs of a claim are of one model.
        assert_eq!(of(&placement, 20, None, Fit::Best), None);
        assert_eq!(placement.most(&wish(1, None, Fit::Best)), 20);
        let model = Wish {
            model: Some("b"),
            ..wish(16, same, Fit::Best)
        };
        assert_eq!(placement.choose(&model).unwrap().len(), 16);
        assert_eq!(
            placement.most(&Wish {
                model: Some("C"),
                ..model
            }),
            0
        );
    }

    #[test]
    fn fgd_leaves_what_others_can_use() {
        let mut placement = placement(&[("A", 4), ("A", 8)]);
        (4..7).for_each(|gpu| placement.take(gpu));
        let of = |p: &Placement, gpus, same, fit| p.choose(&wish(gpus, same, fit));
        let one = |p: &Placement, fit| of(p, 1, None, fit);
        // Nothing is known of claims: the fullest, as best fit has it.
        assert_eq!(
            of(&placement, 3, Some(Same::Box), Fit::Fgd),
            Some(vec![0, 1, 2])
        );
        // Claims for four in a box are known, and the other box has five.
        placement.note(Some(Same::Box), 4);
        placement.note(None, 1);
        assert_eq!(one(&placement, Fit::First), Some(vec![0]));
        assert_eq!(one(&placement, Fit::Fgd), Some(vec![7]));
        placement.take(7);
        assert_eq!(of(&placement, 4, None, Fit::Fgd), Some(vec![0, 1, 2, 3]));
        // Claims for pairs that NVLink joins: a single one takes what has no other half.
        placement.forget(Some(Same::Box), 4);
        placement.note(Some(Same::Nvlink), 2);
        placement.take(0);
        assert_eq!(one(&placement, Fit::Fgd), Some(vec![1]));
        placement.take(1);
        assert_eq!(of(&placement, 2, None, Fit::Fgd), Some(vec![2, 3]));
    }

    #[test]
    fn a_program_uses_only_so_many_boxes() {
        let placement = placement(&[("A", 1); 9]);
        for fit in [Fit::Best, Fit::First, Fit::Spread, Fit::Fgd] {
            assert_eq!(placement.choose(&wish(8, None, fit)).unwrap().len(), 8);
            assert_eq!(placement.choose(&wish(9, None, fit)), None, "{fit:?}");
        }
        assert_eq!(placement.most(&wish(9, None, Fit::Best)), 8);
    }

    /// Compares with a choice that looks at every GPU, over random histories.
    #[test]
    fn fragments_are_the_free_gpus_that_known_claims_cannot_use() {
        let mut placement = Placement::default();
        for gpu in 0..8 {
            let group = |kind: &str| format!("{kind}{}", gpu / 4);
            placement.add(
                gpu,
                &Place {
                    model: "m".into(),
                    groups: [group("b"), group("n"), group("p"), group("x")],
                },
                None,
            );
            placement.put(gpu);
        }
        assert_eq!(placement.fragmented_milli(), 0);
        // Half of the claims want four of one NVLink group, half one of any.
        placement.note(Some(Same::Nvlink), 4);
        placement.note(None, 1);
        assert_eq!(placement.fragmented_milli(), 0);
        placement.take(0);
        assert_eq!(placement.fragmented_milli(), 1_500);
        placement.take(4);
        placement.take(5);
        assert_eq!(placement.fragmented_milli(), 2_500);
    }

    #[test]
    fn what_can_be_placed_is_placed() {
        let mut placement = placement(&[("A", 8), ("A", 4), ("A", 2), ("A", 8), ("A", 1)]);
        let ends = [8, 12, 14, 22, 23];
        let of_box = |gpu: usize| ends.iter().position(|end| gpu < *end).unwrap();
        // The network of the first three boxes is good enough.
        let near = LinkNeed {
            rtt_ns_max: 2_000,
            bits_per_s_min: 1_000_000_000,
        };
        let mut free: BTreeSet<usize> = (0..23).collect();
        let mut random = crate::tests::Random::new(7);
        for _ in 0..20_000 {
            let gpu = random.below(23) as usize;
            if free.remove(&gpu) {
                placement.take(gpu);
            } else {
                free.insert(gpu);
                placement.put(gpu);
            }
            let gpus = 1 + random.below(9) as usize;
            let fit = [Fit::Best, Fit::First, Fit::Spread, Fit::Fgd][random.below(4) as usize];
            let same = [None, Some(Same::Box), Some(Same::Nvlink)][random.below(3) as usize];
            let group = |gpu: usize| match same {
                None => 0,
                Some(Same::Box) => of_box(gpu),
                // Boxes have even numbers of GPUs but the last.
                _ => 100 + gpu / 2,
            };
            let mut counts = HashMap::<usize, usize>::new();
            free.iter()
                .for_each(|gpu| *counts.entry(group(*gpu)).or_default() += 1);
            let can = counts.values().any(|count| *count >= gpus);
            let needs = [near];
            let links = if random.one_in(2) { &needs[..] } else { &[] };
            let far = if links.is_empty() { 23 } else { ends[2] };
            let can = match links.is_empty() {
                true => can,
                false => {
                    let mut near = HashMap::<usize, usize>::new();
                    let free = free.iter().filter(|gpu| **gpu < far);
                    free.for_each(|gpu| *near.entry(group(*gpu)).or_default() += 1);
                    near.values().any(|count| *count >= gpus)
                }
            };
            let chosen = placement.choose(&Wish {
                links,
                ..wish(gpus, same, fit)
            });
            assert_eq!(chosen.is_some(), can, "{gpus} {same:?} {fit:?} {free:?}");
            placement.note(same, gpus);
            if let Some(chosen) = chosen {
                let distinct: BTreeSet<_> = chosen.iter().copied().collect();
                assert_eq!(distinct.len(), gpus);
                assert!(distinct.is_subset(&free));
                assert!(chosen.iter().all(|gpu| *gpu < far), "{chosen:?}");
                assert!(chosen.iter().all(|gpu| group(*gpu) == group(chosen[0])));
            }
        }
    }
}
