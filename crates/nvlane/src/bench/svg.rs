//! Bars as SVG, without a library: labels left, values right, a line where the limit is.

use super::report::{Bars, Report};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LABEL: f64 = 190.0;
/// Where the value 1 is drawn; a little more than that fits.
const FULL: f64 = 480.0;
const ROW: f64 = 18.0;
const OVER_MAX: f64 = 1.1;

/// Draws a report's bars.
pub fn draw(report: &Report) -> String {
    let heights = report.bars.iter().map(|bars| (bars.bars.len() as f64 + 2.5) * ROW);
    let height = 40.0 + heights.sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let title = format!("nvlane bench {}: {}", report.scenario, report.machine.processor);
    text(&mut svg, 10.0, 22.0, "font-weight=\"bold\"", &title);
    let mut y = 40.0;
    for bars in &report.bars {
        y = group(&mut svg, bars, y);
    }
    svg.push_str("</svg>\n");
    svg
}

fn group(svg: &mut String, bars: &Bars, mut y: f64) -> f64 {
    y += ROW;
    text(svg, 10.0, y, "fill=\"#333\" font-weight=\"bold\"", &bars.title);
    let top = y + 5.0;
    for (label, value, note) in &bars.bars {
        y += ROW;
        text(svg, 20.0, y, "fill=\"#333\"", label);
        let width = value.clamp(0.0, OVER_MAX) * FULL;
        let at = y - 10.0;
        push(
            svg,
            format_args!(
                "<rect x=\"{LABEL}\" y=\"{at}\" width=\"{width:.1}\" height=\"12\" fill=\"#2a7fb8\"/>"
            ),
        );
        text(svg, LABEL + width + 6.0, y, "fill=\"#333\"", note);
    }
    let (x, bottom) = (LABEL + FULL, y + 4.0);
    push(
        svg,
        format_args!(
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"#b33\" stroke-dasharray=\"3 2\"/>"
        ),
    );
    y + 1.5 * ROW
}

fn text(svg: &mut String, x: f64, y: f64, style: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    push(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>"));
}

fn push(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_bars_are_bounded() {
        let mut report = Report::new("target");
        report.bars.push(Bars { title: "a<b".into(), bars: vec![("qd1".into(), 9.0, "9".into())] });
        let svg = draw(&report);
        assert!(svg.contains("a&lt;b"));
        assert!(svg.contains("width=\"528.0\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
