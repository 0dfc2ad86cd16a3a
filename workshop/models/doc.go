// Package models has models of protocols in TLA+, and tests that check them with TLC. docs/contributing/proof.md
// explains them. It has no Go code apart from the tests.
package models
