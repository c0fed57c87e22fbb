//! What BTF, the type information that clang writes with `-g`, says of maps.
//!
//! A map is a variable in the section `.maps` whose type is a structure; what is declared of the map is in the
//! types of its members (`__uint(max_entries, 16)` is a pointer to an array of 16, `__type(key, __u32)` a
//! pointer to the type). Format: Linux, Documentation/bpf/btf.rst.

use crate::LoadError;
use crate::map::{KEY_BYTES_MAX, MapDefinition, MapKind, VALUE_BYTES_MAX};

/// Types of one object at most.
const TYPES_MAX: usize = 1 << 16;
/// Types that lead to one another at most.
const CHAIN_MAX: usize = 32;
const MAGIC: u16 = 0xeb9f;
/// [`Type::count`] of a function that others see.
const GLOBAL: usize = 1;

/// The types of an object.
pub struct Btf<'a> {
    types: Vec<Type<'a>>,
    strings: &'a [u8],
}

#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    kind: u8,
    /// How many parts it has; of a function, who sees it.
    count: usize,
    /// Size, or the type it leads to.
    size_or_type: u32,
    more: &'a [u8],
}

const INT: u8 = 1;
const PTR: u8 = 2;
const ARRAY: u8 = 3;
const STRUCT: u8 = 4;
const UNION: u8 = 5;
const ENUM: u8 = 6;
const TYPEDEF: u8 = 8;
const VOLATILE: u8 = 9;
const CONST: u8 = 10;
const RESTRICT: u8 = 11;
const FUNC: u8 = 12;
const FUNC_PROTO: u8 = 13;
const VAR: u8 = 14;
const DATASEC: u8 = 15;
const FLOAT: u8 = 16;
const DECL_TAG: u8 = 17;
const TYPE_TAG: u8 = 18;
const ENUM64: u8 = 19;

/// The little-endian number at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The text that begins at `at` of a table of strings.
pub fn text(strings: &[u8], at: u32) -> Option<&str> {
    let rest = strings.get(at as usize..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == 0)?]).ok()
}

/// Where the parts of a header of `.BTF` or `.BTF.ext` begin: each pair of numbers in it is a part's offset
/// and length, counted from the end of the header.
pub fn part(bytes: &[u8], number: usize) -> Option<&[u8]> {
    if bytes.first_chunk::<2>() != Some(&MAGIC.to_le_bytes()) {
        return None;
    }
    let header = u32_at(bytes, 4)? as usize;
    let place = 8 + number * 8;
    if place + 8 > header {
        return None;
    }
    let start = header.checked_add(u32_at(bytes, place)? as usize)?;
    bytes.get(start..start.checked_add(u32_at(bytes, place + 4)? as usize)?)
}

impl<'a> Btf<'a> {
    /// Reads the section `.BTF`.
    pub fn parse(section: &'a [u8]) -> Option<Btf<'a>> {
        let (mut rest, strings) = (part(section, 0)?, part(section, 1)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let (name, info, size_or_type) = (u32_at(rest, 0)?, u32_at(rest, 4)?, u32_at(rest, 8)?);
            let (kind, count) = ((info >> 24 & 31) as u8, (info & 0xffff) as usize);
            let more = match kind {
                INT | VAR | DECL_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | DATASEC | ENUM64 => count * 12,
                ENUM | FUNC_PROTO => count * 8,
                1..=19 => 0,
                _ => return None,
            };
            let more = rest.get(12..12 + more)?;
            rest = &rest[12 + more.len()..];
            types.push(Type { name, kind, count, size_or_type, more });
            if types.len() > TYPES_MAX {
                return None;
            }
        }
        let types = Btf { types, strings };
        types.types.iter().all(|first| types.ends(*first)).then_some(types)
    }

    /// Whether what a type leads to is something in the end. libbpf goes on until it is.
    fn ends(&self, first: Type<'a>) -> bool {
        let mut found = first;
        for _ in 0..CHAIN_MAX {
            let next = match found.kind {
                ARRAY => u32_at(found.more, 0).unwrap_or_default(),
                PTR | TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG | DECL_TAG | FUNC
                | FUNC_PROTO | VAR => found.size_or_type,
                _ => return true,
            };
            match self.at(next) {
                Some(next) => found = next,
                None => return true,
            }
        }
        false
    }

    /// The strings, which `.BTF.ext` uses too.
    pub fn strings(&self) -> &'a [u8] {
        self.strings
    }

    /// Names of sections of variables.
    pub fn sections(&self) -> Vec<&'a str> {
        self.names(DATASEC)
    }

    /// What the source says of functions, arguments and members beside their types.
    pub fn tags(&self) -> Vec<&'a str> {
        self.names(DECL_TAG)
    }

    /// Whether there is a type of this name, of whatever kind.
    pub fn has(&self, name: &str) -> bool {
        self.types.iter().any(|found| text(self.strings, found.name) == Some(name))
    }

    fn names(&self, kind: u8) -> Vec<&'a str> {
        let each = self.types.iter().filter(|found| found.kind == kind);
        each.map(|found| text(self.strings, found.name).unwrap_or_default()).collect()
    }

    /// Whether it is a function that others see, with one argument.
    pub fn is_global_with_one_argument(&self, id: u32) -> bool {
        let function = self.at(id).filter(|it| it.kind == FUNC && it.count == GLOBAL);
        let arguments = function.and_then(|it| self.at(it.size_or_type));
        arguments.is_some_and(|it| it.kind == FUNC_PROTO && it.count == 1)
    }

    /// The map of variable `name`.
    pub fn map(&self, name: &str) -> Result<MapDefinition, LoadError> {
        let fault = |what: &'static str| LoadError::Map { map: name.to_owned(), what };
        let untyped = || fault("has no type information: compile with -g");
        let is_it =
            |found: &&Type<'_>| found.kind == VAR && text(self.strings, found.name) == Some(name);
        let variable = self.types.iter().find(is_it).ok_or_else(untyped)?;
        let structure = self.plain(variable.size_or_type).ok_or_else(untyped)?;
        if structure.kind != STRUCT {
            return Err(fault("is not declared as a structure of __uint() and __type()"));
        }
        let (mut kind, mut key_bytes, mut value_bytes, mut entries) = (None, None, None, None);
        let (members, _) = structure.more.as_chunks::<12>();
        for member in members {
            let (Some(label), Some(id)) = (u32_at(member, 0), u32_at(member, 4)) else { continue };
            let (number, size) = (|| self.number(id), || self.pointed_size(id));
            match text(self.strings, label).unwrap_or_default() {
                "type" => kind = number(),
                "max_entries" => entries = number(),
                "key_size" => key_bytes = number(),
                "value_size" => value_bytes = number(),
                "key" => key_bytes = size(),
                "value" => value_bytes = size(),
                "map_flags" => {}
                _ => return Err(fault("has a member that nothing here knows")),
            }
        }
        let kind = match kind {
            Some(1) => MapKind::Hash,
            Some(2) => MapKind::Array,
            Some(6) => MapKind::PerCoreArray,
            _ => return Err(fault("is neither a hash, nor an array, nor a per-core array")),
        };
        let key_bytes = key_bytes.filter(|bytes| (1..=KEY_BYTES_MAX).contains(bytes));
        let key_bytes = key_bytes.ok_or_else(|| fault("needs a key of 1 to 64 bytes"))?;
        if kind != MapKind::Hash && key_bytes != 4 {
            return Err(fault("is an array: its key has 4 bytes"));
        }
        let value_bytes = value_bytes.filter(|bytes| (1..=VALUE_BYTES_MAX).contains(bytes));
        let value_bytes = value_bytes.ok_or_else(|| fault("needs a value of 1 byte to 64 KiB"))?;
        let entries = entries.filter(|entries| (1..=1 << 26).contains(entries));
        let entries = entries.ok_or_else(|| fault("needs max_entries, 1 to 2^26"))?;
        Ok(MapDefinition {
            name: name.to_owned(),
            kind,
            key_bytes,
            value_bytes,
            entries,
            initial: Vec::new(),
            read_only: false,
            is_variables: false,
        })
    }

    /// Type `id`; types are counted from 1, and 0 is `void`.
    fn at(&self, id: u32) -> Option<Type<'a>> {
        self.types.get((id as usize).checked_sub(1)?).copied()
    }

    /// The same without its names and qualifiers.
    fn plain(&self, id: u32) -> Option<Type<'a>> {
        let mut found = self.at(id)?;
        for _ in 0..CHAIN_MAX {
            match found.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => {
                    found = self.at(found.size_or_type)?;
                }
                _ => return Some(found),
            }
        }
        None
    }

    /// What `__uint(name, number)` says.
    fn number(&self, id: u32) -> Option<u32> {
        let pointer = self.plain(id).filter(|it| it.kind == PTR)?;
        let array = self.plain(pointer.size_or_type).filter(|it| it.kind == ARRAY)?;
        u32_at(array.more, 8)
    }

    /// The size of what `__type(name, type)` names.
    fn pointed_size(&self, id: u32) -> Option<u32> {
        let pointer = self.plain(id).filter(|it| it.kind == PTR)?;
        self.size(pointer.size_or_type)
    }

    fn size(&self, id: u32) -> Option<u32> {
        let mut factor = 1_u32;
        let mut id = id;
        for _ in 0..CHAIN_MAX {
            let found = self.plain(id)?;
            match found.kind {
                INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => {
                    return factor.checked_mul(found.size_or_type);
                }
                PTR => return factor.checked_mul(8),
                ARRAY => {
                    factor = factor.checked_mul(u32_at(found.more, 8)?)?;
                    id = u32_at(found.more, 0)?;
                }
                _ => return None,
            }
        }
        None
    }
}
