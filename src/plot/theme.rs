//! Colours and type. The palette is Okabe and Ito's, which people with any colour vision can tell apart.

use plotters::style::text_anchor::Pos;
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, RGBColor, TextStyle};

pub(super) const INK: RGBColor = RGBColor(34, 40, 49);
pub(super) const FAINT: RGBColor = RGBColor(110, 118, 129);
pub(super) const GRID: RGBColor = RGBColor(230, 233, 237);
pub(super) const PAPER: RGBColor = RGBColor(255, 255, 255);

pub(super) const ALLOCATED: RGBColor = RGBColor(0, 114, 178);
pub(super) const PENDING: RGBColor = RGBColor(230, 159, 0);
pub(super) const CACHED: RGBColor = RGBColor(222, 226, 231);
pub(super) const RESERVED: RGBColor = RGBColor(120, 130, 143);
pub(super) const CAP: RGBColor = RGBColor(213, 94, 0);
pub(super) const WASTE: RGBColor = RGBColor(204, 121, 167);

/// Call sites, most bytes first; the last is for all others.
pub(super) const SITES: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(95, 78, 160),
    RGBColor(75, 83, 96),
];

/// Youngest to oldest.
pub(super) const AGES: [RGBColor; 5] = [
    RGBColor(253, 231, 37),
    RGBColor(94, 201, 98),
    RGBColor(33, 145, 140),
    RGBColor(59, 82, 139),
    RGBColor(68, 1, 84),
];

/// The family that the PNG's font is registered as, too.
pub(super) const FAMILY: &str = "sans-serif";

pub(super) fn text(size: u32, color: RGBColor) -> TextStyle<'static> {
    style(size, color, FontStyle::Normal)
}

pub(super) fn bold(size: u32, color: RGBColor) -> TextStyle<'static> {
    style(size, color, FontStyle::Bold)
}

fn style(size: u32, color: RGBColor, weight: FontStyle) -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::SansSerif, f64::from(size), weight);
    TextStyle { font, color: color.to_backend_color(), pos: Pos::default() }
}

/// Whether dark text reads better on a colour than light text.
pub(super) fn is_light(color: RGBColor) -> bool {
    let RGBColor(r, g, b) = color;
    0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b) > 150.0
}

/// About how wide a text is, in pixels.
pub(super) fn width(text: &str, size: u32) -> u32 {
    text.chars().count() as u32 * size / 2
}

/// A colour laid over paper.
pub(super) fn tint(color: RGBColor, strength: f64) -> RGBColor {
    let over = |c: u8| (f64::from(c) * strength + 255.0 * (1.0 - strength)).round() as u8;
    let (r, g, b) = color.to_rgba().rgb();
    RGBColor(over(r), over(g), over(b))
}
