//! A product's input in the forms that its parts take, each made once.

use super::launch::{Arg, launch, maybe, pointer, room};
use super::weights::Group;
use crate::ComputeType;
use crate::gpu::launch::{Launch, Module};
use crate::gpu::product::Input;
use candle_core::Result;
use candle_core::cuda::CudaDevice;
use candle_core::cuda::cudarc::driver::CudaSlice;
use schemes::Activation;

/// Codes and other rows start at multiples of so many bytes.
const ALIGN: usize = 16;

/// Columns of an input, and the form that they are made into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Form {
    pub columns: Option<usize>,
    /// Number of columns.
    pub n: usize,
    pub input: Input,
    pub activation: Activation,
}

/// An input in its form.
#[derive(Debug)]
enum Made {
    Floats(CudaSlice<f32>),
    Codes(CudaSlice<u8>, CudaSlice<f32>),
    Halves(CudaSlice<u16>),
}

/// The stages that are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Gathered,
    Codes,
    Widened,
    Cast,
}

/// The input of a product.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub device: &'a CudaDevice,
    pub group: &'a Group,
    /// Number of tokens of each sequence there are.
    pub sequences: &'a [usize],
    /// f32 `[tokens, cols]`.
    pub x: Arg,
    pub tokens: usize,
    pub cols: usize,
    made: Vec<(Stage, Form, Made)>,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(
        device: &'a CudaDevice,
        group: &'a Group,
        sequences: &'a [usize],
        x: Arg,
        (tokens, cols): (usize, usize),
    ) -> Self {
        Inputs { device, group, sequences, x, tokens, cols, made: Vec::new() }
    }

    fn find(&self, stage: Stage, form: Form) -> Option<&Made> {
        self.made.iter().find(|(s, f, _)| (*s, *f) == (stage, form)).map(|(_, _, made)| made)
    }

    fn columns(&self, form: Form) -> Arg {
        maybe(form.columns.map(|i| &self.group.columns[i]))
    }

    /// In f32 `[tokens, n]`: as it is, or rounded where the form asks for that.
    pub(super) fn floats(&mut self, form: Form) -> Result<Arg> {
        match (form.input, form.columns) {
            (Input::Floats, None) => Ok(self.x),
            (Input::Floats, Some(_)) => self.kept(Stage::Gathered, form, Self::gather),
            _ => self.kept(Stage::Widened, form, Self::widen),
        }
    }

    fn kept(&mut self, stage: Stage, form: Form, make: fn(&mut Self, Form) -> Result<CudaSlice<f32>>) -> Result<Arg> {
        if let Some(Made::Floats(slice)) = self.find(stage, form) {
            return Ok(pointer(slice));
        }
        let slice = make(self, form)?;
        let at = pointer(&slice);
        self.made.push((stage, form, Made::Floats(slice)));
        Ok(at)
    }

    fn gather(&mut self, form: Form) -> Result<CudaSlice<f32>> {
        let out = room(self.device, self.tokens * form.n)?;
        let what = Launch::over(Module::Elementwise, "gather", self.tokens, form.n);
        let args = [self.x, self.columns(form), pointer(&out), Arg::int(self.cols)?, Arg::int(form.n)?];
        launch(self.device, &what, &args)?;
        Ok(out)
    }

    fn widen(&mut self, form: Form) -> Result<CudaSlice<f32>> {
        let (codes, scales) = self.codes(form)?;
        let out = room(self.device, self.tokens * form.n)?;
        let what = Launch::over(Module::Quantize, "widen_8", self.tokens, form.n);
        let stride = form.n.next_multiple_of(ALIGN);
        launch(self.device, &what, &[codes, scales, pointer(&out), Arg::int(form.n)?, Arg::int(stride)?])?;
        Ok(out)
    }

    /// Codes i8 `[tokens, n]` padded to 16, and a scale for each token.
    pub(super) fn codes(&mut self, form: Form) -> Result<(Arg, Arg)> {
        if let Some(Made::Codes(codes, scales)) = self.find(Stage::Codes, form) {
            return Ok((pointer(codes), pointer(scales)));
        }
        let stride = form.n.next_multiple_of(ALIGN);
        let codes = room::<u8>(self.device, self.tokens * stride)?;
        let scales = room::<f32>(self.device, self.tokens)?;
        let (columns, cols, n) = (self.columns(form), Arg::int(self.cols)?, Arg::int(form.n)?);
        let one = |kernel| Launch::new(Module::Quantize, kernel, [self.tokens, 1, 1], 256);
        let (mode, fixed) = match form.activation {
            Activation::Int8Static(scale) => (2, scale),
            Activation::Int8Tensor => {
                launch(self.device, &one("row_scales"), &[self.x, columns, pointer(&scales), cols, n])?;
                self.span_scales(&scales)?;
                (1, 0.0)
            }
            Activation::Int8Token | Activation::Float => (0, 0.0),
        };
        let args = [
            self.x,
            columns,
            pointer(&codes),
            pointer(&scales),
            cols,
            n,
            Arg::int(stride)?,
            Arg::Int(mode),
            Arg::Float(fixed),
        ];
        launch(self.device, &one("quantize_8"), &args)?;
        let made = (pointer(&codes), pointer(&scales));
        self.made.push((Stage::Codes, form, Made::Codes(codes, scales)));
        Ok(made)
    }

    /// The largest scale of a sequence for all of its tokens.
    fn span_scales(&self, scales: &CudaSlice<f32>) -> Result<()> {
        let mut end = 0i32;
        let ends = self.sequences.iter().map(|&n| {
            end += n as i32;
            end
        });
        let starts: Vec<i32> = std::iter::once(0).chain(ends).collect();
        let starts = self.device.clone_htod(&starts)?;
        let what = Launch::new(Module::Quantize, "span_scales", [self.sequences.len(), 1, 1], 256);
        launch(self.device, &what, &[pointer(scales), pointer(&starts)])
    }

    /// In the type that is computed in, and elements from row to row.
    pub(super) fn cast(&mut self, form: Form) -> Result<(Arg, usize)> {
        let compute = self.group.compute;
        if compute == ComputeType::F32 {
            return Ok((self.floats(form)?, form.n));
        }
        let stride = form.n.next_multiple_of(ALIGN / 2);
        if let Some(Made::Halves(slice)) = self.find(Stage::Cast, form) {
            return Ok((pointer(slice), stride));
        }
        let x = self.floats(form)?;
        let out = room::<u16>(self.device, self.tokens * stride)?;
        let what = Launch::over(Module::Elementwise, format!("cast_{compute}"), self.tokens, stride);
        launch(self.device, &what, &[x, pointer(&out), Arg::int(form.n)?, Arg::int(stride)?])?;
        let at = pointer(&out);
        self.made.push((Stage::Cast, form, Made::Halves(out)));
        Ok((at, stride))
    }
}
