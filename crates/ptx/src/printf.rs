//! Device `printf`: C's formatting (ISO C 7.21.6.1, as far as CUDA's guide lists it).

use crate::limits::PRINTF_WIDTH_MAX;

/// The source of a `printf`'s arguments.
pub(crate) trait Arguments {
    type Error;
    /// Returns the next argument of 4 or 8 bytes, zero-extended.
    fn next(&mut self, bytes: u32) -> Result<u64, Self::Error>;
    /// Returns the string that a `%s` points to.
    fn string(&mut self, address: u64) -> Result<Vec<u8>, Self::Error>;
}

#[derive(Clone, Copy, Debug, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

/// Formats text; returns it with the number of arguments that the format used.
pub(crate) fn format<A: Arguments>(
    format: &[u8],
    args: &mut A,
) -> Result<(Vec<u8>, u32), A::Error> {
    let mut out = Vec::with_capacity(format.len());
    let mut count = 0;
    let mut rest = format;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            out.push(byte);
            rest = tail;
            continue;
        }
        let start = rest;
        let (spec, long, conversion, after) = parse(tail, args, &mut count)?;
        rest = after;
        let Some(conversion) = conversion else {
            out.extend_from_slice(&start[..start.len() - after.len()]);
            continue;
        };
        if conversion != b'%' {
            convert(&mut out, spec, long, conversion, args)?;
            count += 1;
        } else {
            out.push(b'%');
        }
    }
    Ok((out, count))
}

/// Appends one converted argument.
fn convert<A: Arguments>(
    out: &mut Vec<u8>,
    spec: Spec,
    long: bool,
    conversion: u8,
    args: &mut A,
) -> Result<(), A::Error> {
    match conversion {
        b'd' | b'i' => {
            let value = match long {
                true => args.next(8)? as i64,
                false => i64::from(args.next(4)? as i32),
            };
            let sign = sign(&spec, value < 0);
            integer(out, &spec, value.unsigned_abs(), 10, false, sign, "");
        }
        b'u' | b'o' | b'x' | b'X' | b'p' => {
            let wide = long || conversion == b'p';
            let value = args.next(if wide { 8 } else { 4 })?;
            unsigned(out, spec, value, conversion);
        }
        b'c' => {
            let value = args.next(4)? as u8;
            pad(out, &spec, &[value], false);
        }
        b's' => {
            let text = match args.next(8)? {
                0 => b"(null)".to_vec(),
                address => args.string(address)?,
            };
            let shown = text.len().min(spec.precision.unwrap_or(usize::MAX));
            pad(out, &spec, &text[..shown], false);
        }
        // Floats are promoted to double by the compiler.
        _ => {
            let value = f64::from_bits(args.next(8)?);
            float(out, &spec, value, conversion);
        }
    }
    Ok(())
}

fn unsigned(out: &mut Vec<u8>, mut spec: Spec, value: u64, conversion: u8) {
    let base = match conversion {
        b'u' => 10,
        b'o' => 8,
        _ => 16,
    };
    let prefix = match conversion {
        b'p' => "0x",
        b'x' if spec.alternate && value != 0 => "0x",
        b'X' if spec.alternate && value != 0 => "0X",
        _ => "",
    };
    if conversion == b'o' && spec.alternate {
        let digits = format!("{value:o}").len() + usize::from(value != 0);
        spec.precision = Some(spec.precision.unwrap_or(1).max(digits));
    }
    integer(out, &spec, value, base, conversion == b'X', "", prefix);
}

type Parsed<'f> = (Spec, bool, Option<u8>, &'f [u8]);

/// Parses flags, width, precision, length and conversion after a `%`. Without a conversion the text
/// is printed as it is.
fn parse<'f, A: Arguments>(
    mut rest: &'f [u8],
    args: &mut A,
    count: &mut u32,
) -> Result<Parsed<'f>, A::Error> {
    let mut spec = Spec::default();
    while let Some((&flag, tail)) = rest.split_first() {
        match flag {
            b'-' => spec.left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.alternate = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        rest = tail;
    }
    let (width, tail) = number(rest, args, count)?;
    rest = tail;
    if let Some(width) = width {
        spec.left |= width < 0;
        spec.width = (width.unsigned_abs() as usize).min(PRINTF_WIDTH_MAX);
    }
    if let Some((b'.', tail)) = rest.split_first() {
        let (precision, tail) = number(tail, args, count)?;
        rest = tail;
        // A negative precision from `*` counts as no precision.
        spec.precision = match precision {
            None => Some(0),
            Some(p) => usize::try_from(p).ok().map(|p| p.min(PRINTF_WIDTH_MAX)),
        };
    }
    let mut long = false;
    while let Some((&length, tail)) = rest.split_first() {
        match length {
            b'l' | b'j' | b'z' | b't' => long = true,
            b'h' => {}
            _ => break,
        }
        rest = tail;
    }
    match rest.split_first() {
        Some((&c, tail)) if b"%diuoxXpcsfFeEgGaA".contains(&c) => Ok((spec, long, Some(c), tail)),
        _ => Ok((spec, long, None, rest)),
    }
}

fn number<'f, A: Arguments>(
    mut rest: &'f [u8],
    args: &mut A,
    count: &mut u32,
) -> Result<(Option<i64>, &'f [u8]), A::Error> {
    if let Some((b'*', tail)) = rest.split_first() {
        *count += 1;
        return Ok((Some(i64::from(args.next(4)? as i32)), tail));
    }
    let mut value: Option<i64> = None;
    while let Some((digit @ b'0'..=b'9', tail)) = rest.split_first() {
        value = Some(
            value
                .unwrap_or(0)
                .saturating_mul(10)
                .saturating_add(i64::from(digit - b'0')),
        );
        rest = tail;
    }
    Ok((value, rest))
}

fn sign(spec: &Spec, negative: bool) -> &'static str {
    if negative {
        "-"
    } else if spec.plus {
        "+"
    } else if spec.space {
        " "
    } else {
        ""
    }
}

fn integer(
    out: &mut Vec<u8>,
    spec: &Spec,
    value: u64,
    base: u32,
    upper: bool,
    sign: &str,
    prefix: &str,
) {
    let mut digits = match base {
        10 => value.to_string(),
        8 => format!("{value:o}"),
        _ if upper => format!("{value:X}"),
        _ => format!("{value:x}"),
    };
    if spec.precision == Some(0) && value == 0 {
        digits.clear();
    }
    let mut least = spec.precision.unwrap_or(0);
    // The flag `0` pads with zeros only without a precision.
    if spec.zero && !spec.left && spec.precision.is_none() {
        least = spec.width.saturating_sub(sign.len() + prefix.len());
    }
    let zeros = "0".repeat(least.saturating_sub(digits.len()));
    pad(
        out,
        spec,
        format!("{sign}{prefix}{zeros}{digits}").as_bytes(),
        false,
    );
}

fn pad(out: &mut Vec<u8>, spec: &Spec, text: &[u8], zeros_after_sign: bool) {
    let fill = spec.width.saturating_sub(text.len());
    if spec.left {
        out.extend_from_slice(text);
        out.resize(out.len() + fill, b' ');
    } else if zeros_after_sign {
        let mut sign = text.iter().position(|b| !b"+- ".contains(b)).unwrap_or(0);
        if text[sign..].starts_with(b"0x") || text[sign..].starts_with(b"0X") {
            sign += 2;
        }
        out.extend_from_slice(&text[..sign]);
        out.resize(out.len() + fill, b'0');
        out.extend_from_slice(&text[sign..]);
    } else {
        out.resize(out.len() + fill, b' ');
        out.extend_from_slice(text);
    }
}

fn float(out: &mut Vec<u8>, spec: &Spec, value: f64, conversion: u8) {
    let sign = sign(spec, value.is_sign_negative());
    let magnitude = value.abs();
    let upper = conversion.is_ascii_uppercase();
    let body = if magnitude.is_nan() {
        "nan".into()
    } else if magnitude.is_infinite() {
        "inf".into()
    } else {
        match conversion.to_ascii_lowercase() {
            b'f' => fixed(magnitude, spec.precision.unwrap_or(6), spec.alternate),
            b'e' => exponential(magnitude, spec.precision.unwrap_or(6), spec.alternate),
            b'g' => general(magnitude, spec.precision.unwrap_or(6), spec.alternate),
            _ => hexadecimal(magnitude, spec.precision, spec.alternate),
        }
    };
    let text = format!("{sign}{body}");
    let text = if upper { text.to_uppercase() } else { text };
    pad(out, spec, text.as_bytes(), spec.zero && value.is_finite());
}

fn fixed(value: f64, precision: usize, point: bool) -> String {
    let mut text = format!("{value:.precision$}");
    if precision == 0 && point {
        text.push('.');
    }
    text
}

fn exponential(value: f64, precision: usize, point: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let point = if precision == 0 && point { "." } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{point}e{sign}{:02}", exponent.abs())
}

fn general(value: f64, precision: usize, keep_zeros: bool) -> String {
    let precision = precision.max(1);
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i64 = rounded
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    let fits = (-4..precision as i64).contains(&exponent);
    let text = if fits {
        fixed(
            value,
            (precision as i64 - 1 - exponent).max(0) as usize,
            keep_zeros,
        )
    } else {
        exponential(value, precision - 1, keep_zeros)
    };
    if keep_zeros {
        return text;
    }
    let (mantissa, exponent) = match text.find('e') {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let mantissa = if mantissa.contains('.') {
        mantissa.trim_end_matches('0').trim_end_matches('.')
    } else {
        mantissa
    };
    format!("{mantissa}{exponent}")
}

/// `%a`: one hexadecimal digit before the point, as glibc normalises doubles.
fn hexadecimal(value: f64, precision: Option<usize>, point: bool) -> String {
    const DIGITS: usize = 13;
    let bits = value.to_bits();
    let biased = (bits >> 52) as i64;
    let fraction = bits & ((1 << 52) - 1);
    let (mut lead, mut fraction, exponent) = match (biased, fraction) {
        (0, 0) => (0, 0, 0),
        (0, f) => (0, f, -1022),
        (e, f) => (1, f, e - 1023),
    };
    let digits = match precision {
        None => format!("{fraction:013x}").trim_end_matches('0').to_owned(),
        Some(p) if p >= DIGITS => format!("{fraction:013x}{}", "0".repeat(p - DIGITS)),
        Some(p) => {
            // Round half to even at the last digit kept.
            let drop = 4 * (DIGITS - p);
            let (kept, rest, half) = (
                fraction >> drop,
                fraction & ((1 << drop) - 1),
                1u64 << (drop - 1),
            );
            let odd = if p == 0 { lead & 1 == 1 } else { kept & 1 == 1 };
            let rounded = kept + u64::from(rest > half || rest == half && odd);
            if rounded >> (4 * p) != 0 {
                lead += 1;
            }
            fraction = rounded & ((1u64 << (4 * p)) - 1);
            if p == 0 {
                String::new()
            } else {
                format!("{fraction:0p$x}")
            }
        }
    };
    let point = if digits.is_empty() && !point { "" } else { "." };
    format!("0x{lead}{point}{digits}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct List<'l>(&'l [u64], usize);

    impl Arguments for List<'_> {
        type Error = ();

        fn next(&mut self, _: u32) -> Result<u64, ()> {
            self.1 += 1;
            self.0.get(self.1 - 1).copied().ok_or(())
        }

        fn string(&mut self, address: u64) -> Result<Vec<u8>, ()> {
            Ok(format!("str{address}").into_bytes())
        }
    }

    fn check(fmt: &str, args: &[u64], expected: &str) {
        let (text, count) = format(fmt.as_bytes(), &mut List(args, 0)).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), expected, "{fmt}");
        assert_eq!(count as usize, args.len(), "{fmt}");
    }

    fn f(v: f64) -> u64 {
        v.to_bits()
    }

    // Expected texts are from glibc's printf.
    #[test]
    fn integers() {
        let minus = -5i32 as u32 as u64;
        check(
            "%d|%5d|%-5d|%05d|%+d|% d",
            &[minus, minus, minus, minus, 7, 7],
            "-5|   -5|-5   |-0005|+7| 7",
        );
        check(
            "%.3d|%8.3d|%08.3d|%.0d",
            &[7, 7, 7, 0],
            "007|     007|     007|",
        );
        check(
            "%u %x %X %#x %#X %o %#o",
            &[42, 255, 255, 255, 255, 8, 8],
            "42 ff FF 0xff 0XFF 10 010",
        );
        check("%#x %#o %#06x", &[0, 0, 0x1f], "0 0 0x001f");
        check(
            "%ld %lld %zu %lx",
            &[-1i64 as u64, i64::MIN as u64, u64::MAX, u64::MAX],
            "-1 -9223372036854775808 18446744073709551615 ffffffffffffffff",
        );
        check("%hd %hhu", &[3, 4], "3 4");
        check(
            "%*d|%-*d|%*d|%.*d",
            &[4, 1, 4, 2, -4i32 as u32 as u64, 3, 2, 4],
            "   1|2   |3   |04",
        );
    }

    #[test]
    fn text_and_pointers() {
        check(
            "%s|%6s|%-6s|%.2s|%c%c",
            &[1, 2, 3, 4, 65, 66],
            "str1|  str2|str3  |st|AB",
        );
        check("%p %%", &[0x1234], "0x1234 %");
        check("%s", &[0], "(null)");
        check("%y %", &[], "%y %");
    }

    #[test]
    fn floats() {
        check(
            "%f %.2f %8.3f %-8.1f| %08.2f",
            &[f(1.5), f(2.675), f(-3.14259), f(2.25), f(-1.5)],
            "1.500000 2.67   -3.143 2.2     | -0001.50",
        );
        check(
            "%e %.0e %#.0e %E",
            &[f(12345.678), f(5.5), f(5.5), f(1e-10)],
            "1.234568e+04 6e+00 6.e+00 1.000000E-10",
        );
        check(
            "%g %g %g %g %g %#g %.3g",
            &[
                f(100000.0),
                f(1e6),
                f(1e-4),
                f(1e-5),
                f(0.1),
                f(1.0),
                f(1234.5),
            ],
            "100000 1e+06 0.0001 1e-05 0.1 1.00000 1.23e+03",
        );
        check(
            "%a %a %.1a %.0a %A",
            &[f(1.0), f(0.1), f(1.96875), f(1.5), f(-2.5)],
            "0x1p+0 0x1.999999999999ap-4 0x2.0p+0 0x2p+0 -0X1.4P+1",
        );
        check(
            "%f %F %5.1f %05f",
            &[
                f(f64::INFINITY),
                f(f64::NEG_INFINITY),
                f(f64::NAN),
                f(f64::INFINITY),
            ],
            "inf -INF   nan   inf",
        );
        check("%g %g", &[f(0.0), f(-0.0)], "0 -0");
    }
}
