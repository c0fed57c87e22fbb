//! Bars and lines over time as SVG, without a library. Bars: labels left, values right, a line where
//! the limit is.

use super::report::{Bars, Lines, Report};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LABEL: f64 = 190.0;
/// Where the value 1 is drawn; a little more than that fits.
const FULL: f64 = 480.0;
const ROW: f64 = 18.0;
const OVER_MAX: f64 = 1.1;
/// Height of a chart over time, and what is left beside it.
const CHART: f64 = 200.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 5] = ["#888888", "#b8872a", "#2a7fb8", "#b83a2a", "#2a9a4a"];

/// Draws a report's bars.
pub fn draw(report: &Report) -> String {
    let heights = report.bars.iter().map(|bars| (bars.bars.len() as f64 + 2.5) * ROW);
    let height = 40.0 + heights.sum::<f64>() + report.lines.len() as f64 * (CHART + 4.0 * ROW);
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
    for lines in &report.lines {
        y = chart(&mut svg, lines, y);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Values over time from zero up, one colour per line, the labels below.
fn chart(svg: &mut String, lines: &Lines, mut y: f64) -> f64 {
    y += ROW;
    text(svg, 10.0, y, "fill=\"#333\" font-weight=\"bold\"", &lines.title);
    let (top, bottom) = (y + 10.0, y + 10.0 + CHART);
    let values = || lines.lines.iter().flat_map(|(_, values)| values.iter().copied());
    let most = values().fold(f64::MIN_POSITIVE, f64::max);
    let steps = lines.lines.iter().map(|(_, values)| values.len()).max().unwrap_or(0).max(2);
    let width = WIDTH - 2.0 * MARGIN;
    for (share, label) in [(0.0, "0".to_owned()), (1.0, format!("{most:.0}"))] {
        let at = bottom - share * CHART;
        push(
            svg,
            format_args!(
                "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ccc\"/>",
                MARGIN + width
            ),
        );
        text(svg, 10.0, at + 4.0, "fill=\"#333\"", &label);
    }
    let seconds = format!("{:.0} s", lines.step * steps as f64);
    text(svg, MARGIN + width - 40.0, top - 2.0, "fill=\"#333\"", &seconds);
    for (index, (label, values)) in lines.lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: String = values
            .iter()
            .enumerate()
            .map(|(step, value)| {
                let x = MARGIN + width * step as f64 / (steps - 1) as f64;
                format!("{x:.1},{:.1} ", bottom - value / most * CHART)
            })
            .collect();
        push(
            svg,
            format_args!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>"),
        );
        let x = MARGIN + index as f64 * 150.0;
        text(svg, x, bottom + ROW, &format!("fill=\"{colour}\""), label);
    }
    bottom + 2.0 * ROW
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

    #[test]
    fn lines_are_drawn_within_the_chart() {
        let mut report = Report::new("multipath");
        let lines = vec![("a".into(), vec![0.0, 5.0, 10.0]), ("b".into(), Vec::new())];
        report.lines.push(Lines { title: "t".into(), step: 1.0, lines });
        let svg = draw(&report);
        // From the lower left to the upper right.
        assert!(svg.contains("points=\"60.0,268.0 430.0,168.0 800.0,68.0 \""), "{svg}");
        assert!(svg.contains("3 s") && svg.contains(">10<"), "{svg}");
    }
}
