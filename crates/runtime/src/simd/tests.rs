use super::*;
use proptest::prelude::*;

/// Every operation once, for every instruction set.
struct All<'a>(&'a [f32], &'a [f32], &'a [f32]);

impl Kernel for All<'_> {
    type Output = Vec<Vec<f32>>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<Vec<f32>> {
        let All(a, b, c) = self;
        let map = |f: &dyn Fn(S::V, S::V, S::V) -> S::V| {
            let mut out = vec![0f32; 16];
            let chunks = s.chunks(a).iter().zip(s.chunks(b)).zip(s.chunks(c)).zip(s.chunks_mut(&mut out));
            for (((a, b), c), o) in chunks {
                s.store(f(s.load(a), s.load(b), s.load(c)), o);
            }
            out
        };
        vec![
            map(&|a, b, _| s.add(a, b)),
            map(&|a, b, _| s.sub(a, b)),
            map(&|a, b, _| s.mul(a, b)),
            map(&|a, b, _| s.div(a, b)),
            map(&|a, b, _| s.max(a, b)),
            map(&|a, b, _| s.min(a, b)),
            map(&|a, b, c| s.zero_below(a, b, c)),
            map(&|a, _, _| s.round(a)),
            map(&|a, _, _| s.pow2(s.round(a))),
            map(&|a, b, c| s.fma(a, b, c)),
        ]
    }
}

struct Exp<'a>(&'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for c in s.chunks_mut(self.0) {
            let e = exp(s, s.load(c));
            s.store(e, c);
        }
    }
}

struct Widen<'a>(&'a [u8], usize);

impl Kernel for Widen<'_> {
    type Output = [Vec<f32>; 6];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [Vec<f32>; 6] {
        let Widen(bytes, n) = self;
        let mut out: [Vec<f32>; 6] = std::array::from_fn(|_| vec![0f32; n]);
        let halves: Vec<f16> = bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
        s.widen_i8(bytes, 0, 1.0, &mut out[0]);
        s.widen_i8(bytes, 0x80, 0.37, &mut out[1]);
        s.widen_nibbles(bytes, -0.3, &mut out[2]);
        s.widen_f16(bytes.as_chunks::<2>().0, &mut out[3]);
        s.widen_f16(&halves, &mut out[4]);
        let table = std::array::from_fn(|i| i as f32 * 0.7 - 3.0);
        s.look_up(bytes, &table, &mut out[5]);
        out
    }
}

struct Sums<'a>(&'a [f32]);

impl Kernel for Sums<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let v: [S::V; 4] = std::array::from_fn(|i| s.load(&s.chunks(&self.0[i * 16..])[0]));
        let mut all = s.sum4(v).to_vec();
        all.extend(v.map(|v| s.sum(v)));
        let plain = (0..4).map(|i| self.0[i * 16..i * 16 + S::LANES].iter().sum::<f32>());
        all.extend(plain);
        all
    }
}

/// Operations on pairs, each as the sixteen-bit integers of its result.
struct Pairs<'a>(&'a [i16]);

impl Kernel for Pairs<'_> {
    type Output = Vec<Vec<i64>>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<Vec<i64>> {
        let v: Vec<S::I> = s.pairs(self.0).iter().map(|c| s.load_pairs(c)).collect();
        let lanes = |v: S::I| {
            let mut out = vec![0i16; 2 * S::LANES];
            s.store_pairs(v, &mut s.pairs_mut(&mut out)[0]);
            out.into_iter().map(i64::from).collect::<Vec<_>>()
        };
        let mut floats = [0f32; 16];
        s.store(s.float_pairs(v[0]), &mut s.chunks_mut(&mut floats)[0]);
        let mut square = [s.zero_pairs(); 16];
        square[..S::LANES].copy_from_slice(&v[..S::LANES]);
        s.transpose_pairs(&mut square);
        let mut all = vec![
            lanes(s.dot_pairs(v[0], v[1], v[2])),
            lanes(s.splat_pair([self.0[0], self.0[1]])),
            floats[..S::LANES].iter().map(|f| *f as i64).collect(),
            s.sum4_pairs([v[0], v[1], v[2], v[3]]).map(i64::from).to_vec(),
        ];
        let bytes: Vec<u8> = self.0.iter().map(|x| *x as u8).collect();
        all.extend([lanes(s.byte_pairs(&bytes, 0x80)), lanes(s.nibble_pairs(&bytes))]);
        all.extend(square[..S::LANES].iter().map(|v| lanes(*v)));
        all
    }
}

/// Operations on bytes, each as what it leaves behind in sums.
struct OfBytes<'a>(&'a [u8]);

impl Kernel for OfBytes<'_> {
    type Output = Option<Vec<[[f32; 4]; 4]>>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let b = s.bytes()?;
        let part = |i: usize| self.0[64 * i..].first_chunk::<64>().expect("long enough");
        let signed = |i: usize| part(i).map(|b| b as i8);
        let v = |i: usize| b.load(part(i));
        let ints: [[i32; 16]; 2] =
            [0, 1].map(|i| std::array::from_fn(|j| i32::from_le_bytes(part(i).as_chunks().0[j])));
        let quarter = |i: usize| self.0[i..].first_chunk::<16>().expect("long enough");
        let [low, high] = b.nibbles(v(2));
        let four = b.load4([quarter(3), quarter(70), quarter(99), quarter(150)]);
        let start = b.ints(&ints[0]);
        let x = b.signed(&signed(3));
        let vectors = [
            [b.dot(v(0), x, b.zero()), b.dot(b.flip(v(1)), x, start), b.dot(low, x, start), b.dot(high, x, start)],
            [b.dot(four, x, b.zero()), b.join(start, b.ints(&ints[1])), start, b.zero()],
        ];
        Some([1, 2, 4].iter().flat_map(|whole| vectors.map(|v| b.sum_quads(v, *whole))).collect())
    }
}

/// The same, one lane after the other.
fn plain_pairs(x: &[i16], lanes: usize) -> Vec<Vec<i64>> {
    let at = |v: usize, lane: usize| [x[2 * (v * lanes + lane)], x[2 * (v * lanes + lane) + 1]];
    let int = |[a, b]: [i16; 2]| i32::from(a as u16) | i32::from(b) << 16;
    let halves = |v: i32| [i64::from(v as i16), i64::from((v >> 16) as i16)];
    let dot = |lane| {
        let ([a0, a1], [b0, b1]) = (at(0, lane), at(1, lane));
        let products = i64::from(a0) * i64::from(b0) + i64::from(a1) * i64::from(b1);
        halves((products + i64::from(int(at(2, lane)))) as i32)
    };
    let sum = |v| (0..lanes).fold(0i32, |sum, lane| sum.wrapping_add(int(at(v, lane))));
    let mut all = vec![
        (0..lanes).flat_map(dot).collect(),
        halves(int(at(0, 0))).repeat(lanes),
        (0..lanes).map(|lane| int(at(0, lane)) as f32 as i64).collect(),
        (0..4).map(|v| i64::from(sum(v))).collect(),
    ];
    all.push(x[..2 * lanes].iter().map(|b| i64::from((*b as u8 ^ 0x80) as i8)).collect());
    all.push(x[..lanes].iter().flat_map(|b| [i64::from(*b as u8 & 15) - 8, i64::from(*b as u8 >> 4) - 8]).collect());
    all.extend((0..lanes).map(|i| (0..lanes).flat_map(|j| at(j, i)).map(i64::from).collect()));
    all
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

#[test]
fn exp_is_near_everywhere() {
    for isa in Isa::available() {
        let mut x: Vec<f32> = (0..160_000).map(|i| -87.29 + i as f32 * (175.0 / 160_000.0)).collect();
        let want: Vec<f64> = x.iter().map(|&x| f64::from(x).exp()).collect();
        isa.run(Exp(&mut x));
        for (got, want) in x.iter().zip(want) {
            assert!((f64::from(*got) / want - 1.0).abs() < 2e-7, "{isa:?}: {got} {want}");
        }
        let mut edges = [f32::NEG_INFINITY, -1e9, -88.0, -0.0, 0.0, f32::NAN, f32::INFINITY, 200.0].repeat(2);
        isa.run(Exp(&mut edges));
        assert_eq!(edges[..5], [0.0, 0.0, 0.0, 1.0, 1.0]);
        assert!(edges[5].is_nan() && edges[6] > 1e38 && edges[7] > 1e38);
    }
}

proptest! {
    #[test]
    fn every_set_does_as_plain_does(
        a in prop::collection::vec(-100f32..100.0, 16), b in prop::collection::vec(-100f32..100.0, 16),
        c in prop::collection::vec(-100f32..100.0, 16), nan in 0usize..32,
    ) {
        let (mut a, b, c) = (a, b, c);
        let plain = Isa::Plain(plain::Plain);
        // NaN through pow2 is undefined, so it is set in operands of the others only.
        let mut want = plain.run(All(&a, &b, &c));
        for isa in Isa::available() {
            let got = isa.run(All(&a, &b, &c));
            for i in 0..9 {
                prop_assert!(same(&got[i], &want[i]), "{isa:?} operation {i}");
            }
            for (i, (g, w)) in got[9].iter().zip(&want[9]).enumerate() {
                prop_assert!((g - w).abs() <= 1e-6 * (a[i] * b[i]).abs() + 1e-6 * c[i].abs(), "{isa:?} fma");
            }
        }
        if let Some(x) = a.get_mut(nan) {
            *x = f32::NAN;
            want = plain.run(All(&a, &b, &c));
            for isa in Isa::available() {
                let got = isa.run(All(&a, &b, &c));
                (0..7).for_each(|i| assert!(same(&got[i], &want[i]), "{isa:?} operation {i} with NaN"));
            }
        }
    }

    #[test]
    fn every_set_widens_as_plain_does(bytes in prop::collection::vec(any::<u8>(), 200), n in 0usize..100) {
        let want = Isa::Plain(plain::Plain).run(Widen(&bytes, n));
        for isa in Isa::available() {
            let got = isa.run(Widen(&bytes, n));
            (0..6).for_each(|i| assert!(same(&got[i], &want[i]), "{isa:?} {i} of {n}"));
        }
    }

    #[test]
    fn pairs_as_lane_by_lane(x in prop::collection::vec(any::<i16>(), 512)) {
        for isa in Isa::available() {
            prop_assert_eq!(isa.run(Pairs(&x)), plain_pairs(&x, isa.tile().lanes), "{:?}", isa);
        }
    }

    #[test]
    fn bytes_as_plain_ones(x in prop::collection::vec(any::<u8>(), 256)) {
        let want = Isa::Plain(plain::Plain).run(OfBytes(&x));
        // The first sums, from what they mean.
        let product = |i: usize| i32::from(x[i]) * i32::from(x[192 + i] as i8);
        for (q, sums) in want.as_ref().expect("plain has all")[0].iter().enumerate() {
            prop_assert_eq!(sums[0], (16 * q..16 * q + 16).map(product).sum::<i32>() as f32);
        }
        for isa in Isa::available() {
            prop_assert!(isa.run(OfBytes(&x)).is_none_or(|got| Some(got) == want), "{:?}", isa);
        }
    }

    #[test]
    fn sums_of_lanes(x in prop::collection::vec(-1f32..1.0, 64)) {
        for isa in Isa::available() {
            let got = isa.run(Sums(&x));
            for i in 0..4 {
                prop_assert_eq!(got[i].to_bits(), got[4 + i].to_bits());
                prop_assert!((got[i] - got[8 + i]).abs() < 1e-5);
            }
        }
    }
}
