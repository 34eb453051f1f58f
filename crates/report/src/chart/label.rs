//! Placement of labels, so that they hide neither points nor each other.

use super::svg::Area;

/// A label that wants a place near its point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) at: (f64, f64),
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Areas and points that labels should keep clear of.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    pub(super) areas: Vec<Area>,
    pub(super) segments: Vec<((f64, f64), (f64, f64))>,
}

/// Distances of a label from its point, in pixels, nearest first; beyond the first a line leads to the point.
const DISTANCES: [f64; 5] = [7.0, 16.0, 30.0, 48.0, 70.0];

/// Directions, the most readable first.
const DIRECTIONS: [(f64, f64); 8] =
    [(1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 1.0), (0.75, -0.75), (0.75, 0.75), (-0.75, -0.75), (-0.75, 0.75)];

/// Each label's place, by its least costly candidate. Every label is looked at
/// again when the others have theirs.
pub(super) fn arrange(wishes: &[Wish], obstacles: &Obstacles, bounds: Area) -> Vec<Area> {
    let mut places: Vec<Option<Area>> = vec![None; wishes.len()];
    for _ in 0..4 {
        for (index, wish) in wishes.iter().enumerate() {
            let best = candidates(wish)
                .map(|(area, cost)| {
                    let others = places.iter().enumerate().filter(|(other, _)| *other != index);
                    let others = others.filter_map(|(_, place)| *place);
                    (area, cost + hidden(area, others, obstacles, bounds))
                })
                .min_by(|a, b| a.1.total_cmp(&b.1));
            places[index] = best.map(|(area, _)| area);
        }
    }
    places.into_iter().map(Option::unwrap_or_default).collect()
}

/// Start of the line from a label to its point, if the label is far away.
pub(super) fn leader(label: Area, at: (f64, f64)) -> Option<(f64, f64)> {
    let nearest = (at.0.clamp(label.x0, label.x1), at.1.clamp(label.y0, label.y1));
    let distance = (nearest.0 - at.0).hypot(nearest.1 - at.1);
    (distance > DISTANCES[0] + 4.0).then_some(nearest)
}

fn candidates(wish: &Wish) -> impl Iterator<Item = (Area, f64)> {
    let Wish { at, width, height } = *wish;
    DISTANCES.iter().enumerate().flat_map(move |(ring, distance)| {
        DIRECTIONS.iter().enumerate().map(move |(preference, &(dx, dy))| {
            let x = at.0 + dx * distance;
            let y = at.1 + dy * distance;
            let x0 = if dx > 0.0 {
                x
            } else if dx < 0.0 {
                x - width
            } else {
                x - width / 2.0
            };
            let y0 = if dy > 0.0 {
                y
            } else if dy < 0.0 {
                y - height
            } else {
                y - height / 2.0
            };
            let cost = ring as f64 * 40.0 + preference as f64 * 3.0;
            (Area::new(x0, y0, x0 + width, y0 + height), cost)
        })
    })
}

/// Cost of a label in this area: the length of other things that it would cover.
fn hidden(area: Area, labels: impl Iterator<Item = Area>, obstacles: &Obstacles, bounds: Area) -> f64 {
    let labels: f64 = labels.map(|other| area.shared(other)).sum();
    let areas: f64 = obstacles.areas.iter().map(|other| area.shared(*other)).sum();
    let crossed = obstacles.segments.iter().filter(|(from, to)| crosses(area, *from, *to)).count();
    let outside = area.width() * area.height() - area.shared(bounds);
    labels * 8.0 + areas * 3.0 + crossed as f64 * 30.0 + outside * 20.0
}

/// Returns whether the segment goes through the rectangle (Liang and Barsky's clipping).
fn crosses(area: Area, from: (f64, f64), to: (f64, f64)) -> bool {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let edges = [(-dx, from.0 - area.x0), (dx, area.x1 - from.0), (-dy, from.1 - area.y0), (dy, area.y1 - from.1)];
    let (mut enters, mut leaves) = (0.0f64, 1.0f64);
    for (step, room) in edges {
        if step == 0.0 {
            if room < 0.0 {
                return false;
            }
        } else if step < 0.0 {
            enters = enters.max(room / step);
        } else {
            leaves = leaves.min(room / step);
        }
    }
    enters < leaves
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Area = Area { x0: 0.0, y0: 0.0, x1: 400.0, y1: 300.0 };

    fn overlaps(places: &[Area]) -> usize {
        let pairs = (0..places.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        pairs.filter(|&(a, b)| places[a].shared(places[b]) > 0.0).count()
    }

    #[test]
    fn a_crowd_of_labels_stays_apart() {
        let wishes: Vec<Wish> =
            (0..8).map(|i| Wish { at: (200.0 + f64::from(i), 150.0), width: 50.0, height: 14.0 }).collect();
        let areas = wishes.iter().map(|wish| Area::around(wish.at, 5.0)).collect();
        let obstacles = Obstacles { areas, segments: Vec::new() };
        assert_eq!(overlaps(&arrange(&wishes, &obstacles, BOUNDS)), 0);
    }

    #[test]
    fn a_label_at_the_edge_stays_inside() {
        let wish = Wish { at: (398.0, 2.0), width: 50.0, height: 14.0 };
        let places = arrange(&[wish], &Obstacles::default(), BOUNDS);
        assert!((places[0].shared(BOUNDS) - 50.0 * 14.0).abs() < 1e-6, "{places:?}");
    }

    #[test]
    fn segments_are_seen() {
        let area = Area::new(10.0, 10.0, 20.0, 20.0);
        assert!(crosses(area, (0.0, 15.0), (30.0, 15.0)));
        assert!(crosses(area, (12.0, 12.0), (13.0, 13.0)));
        assert!(!crosses(area, (0.0, 0.0), (30.0, 0.0)));
        assert!(!crosses(area, (0.0, 15.0), (5.0, 15.0)));
    }

    #[test]
    fn only_a_label_far_away_has_a_line() {
        let label = Area::new(10.0, 0.0, 30.0, 10.0);
        assert_eq!(leader(label, (5.0, 5.0)), None);
        assert_eq!(leader(label, (-30.0, 5.0)), Some((10.0, 5.0)));
    }
}
