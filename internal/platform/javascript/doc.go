// Package javascript holds the JavaScript libraries of the pages that this program makes, as their authors publish them
// on npm. VERSIONS lists every file with its origin; workshop/scripts/javascript compares the files with npm, and
// updates them.
package javascript
