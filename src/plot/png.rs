//! An SVG as pixels.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use super::PlotError;
use super::theme::FAMILY;

/// Pixels per unit of the SVG.
const SCALE: f32 = 2.0;

pub(super) fn render(svg: &str) -> Result<Vec<u8>, PlotError> {
    let failed = |e: &dyn std::fmt::Display| PlotError::Drawing(e.to_string());
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let name = fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
    if let Some(name) = name {
        fonts.set_sans_serif_family(name);
    }
    let options = Options { font_family: FAMILY.into(), fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|e| failed(&e))?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| failed(&"the picture has no size"))?;
    let mut pixels =
        Pixmap::new(size.width(), size.height()).ok_or_else(|| failed(&"the picture is too large"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| failed(&e))
}
