// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers and times as people read them. Nothing here touches the page.

/** A number with three significant digits, or all of its integer part. */
export function short(number) {
  if (number === null || !Number.isFinite(number)) {
    return "–";
  }
  const size = Math.abs(number);
  const digits = size >= 100 || number === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return number.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Milliseconds, as µs, ms or s. */
export function duration(ms) {
  if (ms === null || !Number.isFinite(ms)) {
    return "–";
  }
  return ms < 1 ? `${short(ms * 1000)} µs` : ms < 1000 ? `${short(ms)} ms` : `${short(ms / 1000)} s`;
}

/** A span of time in its largest units. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
  if (days) {
    return `${days} d ${hours % 24} h`;
  }
  if (hours) {
    return `${hours} h ${minutes % 60} min`;
  }
  return minutes ? `${minutes} min` : `${seconds} s`;
}

/** Bytes in binary units. */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, size > 0 ? Math.floor(Math.log2(size) / 10) : 0);
  return `${short(size / 1024 ** power)} ${units[power]}`;
}

/** The time of day of a moment in milliseconds since the epoch. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** A number as people read it, with few decimals. */
export function grouped(number) {
  return number.toLocaleString("en", { maximumFractionDigits: 2 });
}
