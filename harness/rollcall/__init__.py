"""The roll call: what each rank was doing, in this run or attached from outside, and whom to blame."""
