//! The sizes of a component that a compiler's work depends on, each checked against its limit.

use wasmparser::{
    BinaryReader, BinaryReaderError, ComponentType, ComponentTypeDeclaration, FunctionBody,
    InstanceTypeDeclaration, KnownCustom, Payload,
};

use super::malformed;
use crate::compiler::CompileLimits;
use crate::component::LoadError;

/// First byte of a component type.
const COMPONENT_TYPE: u8 = 0x41;
/// First byte of an instance type.
const INSTANCE_TYPE: u8 = 0x42;
/// Kind of the section itself, which is read as a type whose declarations are all types.
const SECTION: u8 = 0;
/// First byte of a declaration of a type, within a component or instance type.
const TYPE_DECLARATION: u8 = 0x01;

/// The sizes of the part of a file that was read so far.
pub(super) struct Sizes<'a> {
    limits: &'a CompileLimits,
    file: &'a [u8],
    depth: u32,
    components: u32,
    functions: u32,
    name_bytes: u64,
}

impl<'a> Sizes<'a> {
    pub(super) fn new(limits: &'a CompileLimits, file: &'a [u8]) -> Self {
        Self {
            limits,
            file,
            depth: 0,
            components: 0,
            functions: 0,
            name_bytes: 0,
        }
    }

    /// Number of components and modules around the part that is read now, but for the outermost.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Adds the next part of the file.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the size of the other sections is bounded by that of the file"
    )]
    pub(super) fn add(&mut self, payload: &Payload<'_>) -> Result<(), LoadError> {
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => self.open(),
            Payload::End(_) => {
                self.depth = self.depth.saturating_sub(1);
                Ok(())
            }
            Payload::FunctionSection(section) => {
                self.functions = self.functions.saturating_add(section.count());
                check("functions", self.functions, self.limits.functions)
            }
            Payload::CodeSectionEntry(body) => self.check_body(body),
            Payload::ComponentTypeSection(section) => self.check_types(section.range()),
            Payload::CustomSection(section) => {
                let named = section.as_known();
                if let KnownCustom::Name(_) | KnownCustom::ComponentName(_) = named {
                    self.name_bytes += section.data().len() as u64;
                }
                check("bytes of names", self.name_bytes, self.limits.name_bytes)
            }
            _ => Ok(()),
        }
    }

    /// Enters a component or module.
    fn open(&mut self) -> Result<(), LoadError> {
        self.depth += 1;
        self.components += 1;
        let max = self.limits.component_depth;
        check("levels of components", self.depth, max)?;
        let max = self.limits.components;
        check("components and modules", self.components, max)
    }

    fn check_body(&self, body: &FunctionBody<'_>) -> Result<(), LoadError> {
        let bytes = body.range().len() as u64;
        check("bytes in a function", bytes, self.limits.body_bytes)?;
        let mut locals = 0_u64;
        for group in body.get_locals_reader().map_err(malformed)? {
            let (count, _) = group.map_err(malformed)?;
            locals += u64::from(count);
        }
        check("locals in a function", locals, self.limits.locals)
    }

    /// Checks the depth of the types in the section at `range`. Every reader of types calls itself
    /// for a type in a type, so this one comes first and does not.
    fn check_types(&self, range: std::ops::Range<usize>) -> Result<(), LoadError> {
        let section = self.file.get(range.clone()).unwrap_or_default();
        let mut reader = BinaryReader::new(section, range.start);
        let mut walk = TypeWalk::begin(&mut reader).map_err(malformed)?;
        while let Some(depth) = walk.step(&mut reader).map_err(malformed)? {
            check("levels of types", depth as u64, self.limits.type_depth)?;
        }
        Ok(())
    }
}

/// The way through a section of types, from each declaration to the next.
struct TypeWalk {
    /// Of each type around the next declaration, the outermost first.
    open: Vec<OpenType>,
}

/// A type whose declarations are being read.
struct OpenType {
    kind: u8,
    /// Number of declarations that follow.
    left: u32,
}

impl TypeWalk {
    fn begin(reader: &mut BinaryReader<'_>) -> Result<Self, BinaryReaderError> {
        let left = reader.read_var_u32()?;
        let section = OpenType {
            kind: SECTION,
            left,
        };
        Ok(Self {
            open: vec![section],
        })
    }

    /// Reads the next declaration, and returns the depth after it; `None` at the end.
    fn step(&mut self, reader: &mut BinaryReader<'_>) -> Result<Option<usize>, BinaryReaderError> {
        while self.open.pop_if(|innermost| innermost.left == 0).is_some() {}
        let Some(innermost) = self.open.last_mut() else {
            return Ok(None);
        };
        innermost.left -= 1;
        let kind = innermost.kind;
        if kind != SECTION {
            if reader.clone().read_u8()? != TYPE_DECLARATION {
                skip_declaration(kind, reader)?;
                return Ok(Some(self.open.len() - 1));
            }
            reader.read_u8()?;
        }
        match reader.clone().read_u8()? {
            kind @ (COMPONENT_TYPE | INSTANCE_TYPE) => {
                reader.read_u8()?;
                let left = reader.read_var_u32()?;
                self.open.push(OpenType { kind, left });
            }
            // No other type contains a component or instance type.
            _ => drop(reader.read::<ComponentType<'_>>()?),
        }
        Ok(Some(self.open.len() - 1))
    }
}

/// Reads a declaration that is no type.
fn skip_declaration(kind: u8, reader: &mut BinaryReader<'_>) -> Result<(), BinaryReaderError> {
    if kind == COMPONENT_TYPE {
        reader.read::<ComponentTypeDeclaration<'_>>()?;
    } else {
        reader.read::<InstanceTypeDeclaration<'_>>()?;
    }
    Ok(())
}

fn check(unit: &'static str, count: impl Into<u64>, max: impl Into<u64>) -> Result<(), LoadError> {
    let (count, max) = (count.into(), max.into());
    if count > max {
        return Err(LoadError::TooComplex { unit, count, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::scan;
    use super::*;

    /// A component with one section.
    fn component_with(section: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
        bytes.push(section);
        let mut length = content.len();
        while length >= 0x80 {
            bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        bytes.push(u8::try_from(length).unwrap());
        bytes.extend(content);
        bytes
    }

    /// A section of one type with types within types, `levels` in all.
    fn nested_types(levels: usize) -> Vec<u8> {
        let mut content = vec![1];
        for level in 1..levels {
            let kind = [COMPONENT_TYPE, INSTANCE_TYPE][level % 2];
            content.extend([kind, 1, TYPE_DECLARATION]);
        }
        content.extend([INSTANCE_TYPE, 0]);
        component_with(7, &content)
    }

    fn nested_components(levels: usize) -> Vec<u8> {
        let mut inner = b"\0asm\x0d\0\x01\0".to_vec();
        for _ in 0..levels {
            inner = component_with(4, &inner);
        }
        inner
    }

    fn in_module(text: &str) -> Vec<u8> {
        wat::parse_str(format!("(component (core module {text}))")).unwrap()
    }

    fn refused(bytes: &[u8], limits: &CompileLimits) -> Option<(&'static str, u64, u64)> {
        let error = scan(bytes, limits).unwrap_err();
        if let LoadError::TooComplex { unit, count, max } = error {
            return Some((unit, count, max));
        }
        // The first thing missing in a file without any fault of this kind.
        assert_eq!(error, LoadError::NoLifecycle);
        None
    }

    /// The unit of a size, files by their size, and the largest size that is allowed.
    type Case<'a> = (&'a str, &'a dyn Fn(usize) -> Vec<u8>, usize);

    #[test]
    fn each_size_is_refused_past_its_limit_and_not_before() {
        let limits = CompileLimits {
            type_depth: 3,
            component_depth: 3,
            components: 3,
            functions: 3,
            body_bytes: 40,
            locals: 3,
            name_bytes: 20,
            ..CompileLimits::default()
        };
        let name = |bytes| format!(r#"(@custom "name" "{}")"#, "x".repeat(bytes));
        let cases: [Case<'_>; 7] = [
            ("levels of types", &nested_types, 3),
            ("levels of components", &nested_components, 3),
            (
                "components and modules",
                &|n| wat::parse_str(format!("(component {})", "(component)".repeat(n))).unwrap(),
                3,
            ),
            ("functions", &|n| in_module(&"(func)".repeat(n)), 3),
            // The number of groups of locals and the end are two bytes.
            (
                "bytes in a function",
                &|n| in_module(&format!("(func {})", "nop ".repeat(n - 2))),
                40,
            ),
            (
                "locals in a function",
                &|n| in_module(&format!("(func (local i32 {}))", "i64 ".repeat(n - 1))),
                3,
            ),
            ("bytes of names", &|n| in_module(&name(n)), 20),
        ];
        for (unit, make, max) in cases {
            assert_eq!(refused(&make(max), &limits), None, "{unit}");
            let (count, allowed) = (max as u64 + 1, max as u64);
            let past = refused(&make(max + 1), &limits);
            assert_eq!(past, Some((unit, count, allowed)));
        }
    }

    #[test]
    fn sizes_are_those_of_the_whole_file() {
        let limits = CompileLimits {
            functions: 3,
            ..CompileLimits::default()
        };
        let module = "(core module (func) (func))";
        let text = format!("(component {module} (component {module}))");
        let bytes = wat::parse_str(text).unwrap();
        assert_eq!(refused(&bytes, &limits), Some(("functions", 4, 3)));
    }

    #[test]
    fn a_million_levels_of_types_need_no_stack() {
        let scanned = std::thread::Builder::new().stack_size(128 << 10).spawn(|| {
            let limits = CompileLimits {
                type_depth: 1_000_000,
                ..CompileLimits::default()
            };
            let (within, past) = (nested_types(1_000_000), nested_types(1_000_001));
            (refused(&within, &limits), refused(&past, &limits))
        });
        let past = ("levels of types", 1_000_001, 1_000_000);
        assert_eq!(scanned.unwrap().join().unwrap(), (None, Some(past)));
    }

    #[test]
    fn types_are_followed_past_declarations_of_all_kinds() {
        let text = r#"(component
            (type (component
                (import "a" (func $f (param "x" u32)))
                (type $t (record (field "r" string)))
                (export "u" (type $u (eq $t)))
                (type (instance
                    (core type (module (import "a" "b" (func)) (export "c" (memory 1))))
                    (type (tuple u8 u8))
                    (type (instance (type (list char))))
                    (export "g" (func))))))
            (type (list u8)))"#;
        let bytes = wat::parse_str(text).unwrap();
        let limits = |type_depth| CompileLimits {
            type_depth,
            ..CompileLimits::default()
        };
        assert_eq!(refused(&bytes, &limits(3)), None);
        assert_eq!(refused(&bytes, &limits(2)), Some(("levels of types", 3, 2)));
    }
}
