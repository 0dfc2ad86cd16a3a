// Package ruleschema describes rule files and files of tests for tools: as JSON Schema (draft 7, which all editors
// support). Its tests write the Markdown tables of docs/ from the same descriptions.
//
// Everything comes from the tables that read these files, in packages config and ruletest. Only the relations between
// keys of rule files are written here. A schema finds fewer errors than `ratelimitd check`: it sees one value at a time
// and no other file. Files that the schema rejects are also rejected by check; a test lists the errors that no schema
// can find.
//
// All functions are pure and may be called concurrently.
package ruleschema
