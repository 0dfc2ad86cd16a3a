// Package ruleschema says what may stand in rule files and in test files, for tools: as JSON Schema (draft 7, which all
// editors know). Its tests write the same as Markdown, and compare it with the tables of docs/.
//
// It owns neither language: config and ruletest describe theirs, key by key, and tests there hold the descriptions to what
// reads the files. A schema knows less than `ratelimitd check`: it sees one value at a time and no other file. What it
// refuses check refuses too; a test shows which of check's errors are beyond it.
//
//   - schema.go  a described language as a schema, key by key
//   - rules.go   what the keys of a rule file have to do with each other
//
// Everything here is pure and may be called concurrently.
package ruleschema
