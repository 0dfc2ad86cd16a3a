// Package regions counts limits that hold across regions. Store is a store in front of another one: takes under limits without
// Regions go straight to the other store. A limit with Regions is counted at the home of its counter, by the arithmetic of package
// region, and in the records of backend.Records.
//
// Processes of different regions talk to each other through Peers: a Store asks with Exchange and Consent, and answers with its
// methods Answer and Consent.
package regions
